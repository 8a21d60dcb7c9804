"""A warm pool of child processes, which compute rewards."""
