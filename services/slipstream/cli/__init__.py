"""The `slipstream` command, and the launcher that runs all pods as child processes of one machine."""
