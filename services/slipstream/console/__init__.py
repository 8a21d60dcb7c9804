"""The web console: a run, its completions, its timeline and its losses, in a browser."""
