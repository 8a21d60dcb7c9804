"""Programs and their tests: which code an answer holds, what is run, and whether the outcome is right."""
