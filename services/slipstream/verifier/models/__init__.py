"""Models that score answers, each in a process of its own; only that process imports torch."""
