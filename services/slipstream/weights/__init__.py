"""Weight broadcasts: the layout in buckets, the process group, and both ends of a transfer."""
