"""How many turns the disk bears."""
