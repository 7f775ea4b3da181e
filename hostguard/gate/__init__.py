"""Decides when and in which order turns start."""
