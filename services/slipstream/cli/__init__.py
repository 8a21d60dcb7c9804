"""The `slipstream` command and the local launcher: the same pods as in a cluster, as child processes."""
