"""Weights to the fleet."""
