"""The actor pod: leases prompts, samples from rollouts, has the answers scored and inserts the groups."""
