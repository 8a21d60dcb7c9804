"""Programs and their tests: which code an answer holds, what is run of it, and whether the outcome is right."""
