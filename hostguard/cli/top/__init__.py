"""`hostguard top`: what is shown and what keys do, pure (model, draw, keys); the terminal, and the loop."""
