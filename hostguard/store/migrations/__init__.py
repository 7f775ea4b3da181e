"""Schema steps, applied in order of their number, and nothing else."""
