"""The configuration: read, checked, and written."""
