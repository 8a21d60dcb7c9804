"""The teacher pod: logprobs of given tokens under a model that does not change."""
