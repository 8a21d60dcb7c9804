"""Conversations by the policy's chat template: messages into tokens, sampled tokens into messages."""
