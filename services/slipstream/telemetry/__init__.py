"""Metrics and logs of every pod: one table of names, one line a log event."""
