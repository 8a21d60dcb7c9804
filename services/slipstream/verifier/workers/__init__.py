"""A warm pool of child processes, in which rewards that compute are judged, one answer at a time."""
