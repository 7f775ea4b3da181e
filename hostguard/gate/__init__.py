"""Whether, when and in which order turns start."""
