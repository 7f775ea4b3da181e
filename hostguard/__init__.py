"""hostguard keeps a small Linux host alive while several AI minds work on it."""

__version__ = "0.1.0"
