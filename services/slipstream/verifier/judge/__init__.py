"""Rewards by a language model behind an endpoint."""
