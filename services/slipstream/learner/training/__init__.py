"""A training step, and what it consists of."""
