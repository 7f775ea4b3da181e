"""A turn from its scope to its end."""
