"""The policy, and the models beside it: loading, saving, logprobs."""
