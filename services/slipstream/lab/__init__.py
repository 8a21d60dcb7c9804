"""The loss lab: a stored batch under every objective, correction and aggregation, without training on it."""
