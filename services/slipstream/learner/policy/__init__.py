"""The policy and the models beside it: made, loaded, sharded into logprobs."""
