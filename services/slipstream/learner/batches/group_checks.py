"""Checks of a batch against the model that trains on it, before the first forward pass."""

from collections.abc import Sequence

from slipstream.learner.batches import routed_experts, top_logprobs
from slipstream.learner.policy.model import Policy
from slipstream.records import Group


def check_groups(
    groups: Sequence[Group], policy: Policy, *, replay_experts: bool, rollout_top_k: int
) -> None:
    """Check tokens, routed experts and top logprobs of the groups.

    rollout_top_k: top logprobs a token that the objective reads, 0 for none.
    Errors: RoutingMismatch for missing experts, or those of another model; ValueError for a token that the
    model does not have, or for missing top logprobs.
    """
    if replay_experts and policy.routers is not None:
        layers = policy.model.config.get_text_config().num_hidden_layers
        routed_experts.require_experts(groups, policy.routers, hidden_layers=layers)
    vocabulary = int(policy.model.config.get_text_config().vocab_size)
    for group in groups:
        _check_tokens(group, vocabulary)
    if rollout_top_k:
        top_logprobs.require_top_logprobs(groups, rollout_top_k, vocabulary=vocabulary)


def _check_tokens(group: Group, vocabulary: int) -> None:
    """Errors: ValueError for tokens of another vocabulary, which the embedding could not look up."""
    prompts = (segment.prompt_token_ids or () for segment in group.segments)
    for token_ids in (group.prompt_token_ids, *prompts, *(s.token_ids for s in group.segments)):
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocabulary:
            wrong = min(token_ids) if min(token_ids) < 0 else max(token_ids)
            raise ValueError(
                f"group {group.group_id} has token {wrong}, and the model {vocabulary} tokens; rollout and "
                "learner must use one model and one tokenizer"
            )
