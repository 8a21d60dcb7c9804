"""The rollout pod: leases prompts, generates with an engine in it, has them scored, inserts them."""
