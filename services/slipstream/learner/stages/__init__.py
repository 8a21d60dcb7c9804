"""Stages that sample first and train afterwards, and the cold start."""
