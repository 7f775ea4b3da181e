"""The drivers of turns, one file for each sort, and the choice between them."""
