"""Metrics, logs and health of every pod, and its background tasks."""
