"""The Kubernetes side of a run, through its API: find a release, read its pods, scale and pause it."""
