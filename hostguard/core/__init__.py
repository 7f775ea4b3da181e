"""Values, names and rules that every other package builds on. No I/O."""
