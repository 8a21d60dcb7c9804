"""Where code that a model wrote runs: short-lived children of a warm fork server, behind several walls."""
