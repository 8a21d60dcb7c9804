"""The teacher pod: logprobs of given tokens under a fixed model."""
