"""A message from its arrival to its rows in the queue."""
