"""How weights travel: the layout of a broadcast, the group that carries it, and its two ends."""
