"""A local run: its directory, its processes, and what is shown of them."""
