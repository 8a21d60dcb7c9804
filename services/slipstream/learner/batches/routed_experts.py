"""The routed experts of rollouts: from the bytes in a completion to the tokens of a packed row.

Routing replay: the learner's forward pass uses the experts that the engine chose, weighted by its own router.
See Stabilizing MoE Reinforcement Learning by Aligning Training and Inference Routers, arXiv:2510.11370.

Shape suffixes: R tokens of a row, L hidden layers of the model, K experts active at a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from slipstream.learner.policy.routing import Routers
from slipstream.records import Group, RoutedExperts, RoutingMismatch, Segment

UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A run of `count` tokens of a row, and the segment from which they come.

    `first` is the index of the first of them among the tokens of prompt and completion.
    """

    experts: RoutedExperts | None
    first: int
    count: int


def experts_of_row(origins: Sequence[Origin], device: torch.device) -> torch.Tensor | None:
    """Return the experts of each token of a row, [R, L, K] int32, -1 for unknown; None if all are unknown.

    Errors: RoutingMismatch when the origins are of several models.
    """
    shapes = {(o.experts.layers, o.experts.top_k) for o in origins if o.experts is not None}
    if not shapes:
        return None
    if len(shapes) > 1:
        raise RoutingMismatch(f"routed experts: got (layers, top_k) {sorted(shapes)} in one batch")
    experts_RLK = np.full((sum(o.count for o in origins), *shapes.pop()), UNKNOWN, dtype=np.int32)
    start = 0
    for origin in origins:
        if origin.experts is not None:
            ids = _ids(origin.experts)[origin.first : origin.first + origin.count]
            experts_RLK[start : start + len(ids)] = ids
        start += origin.count
    return torch.from_numpy(experts_RLK).to(device)


def require_experts(groups: Sequence[Group], routers: Routers, *, hidden_layers: int) -> None:
    """Check that each completion that may train has its experts, and that they are of this model.

    The experts of all tokens before the last sampled one are required. No sampled token attends to later
    ones, which the learner's own router routes. Errors: RoutingMismatch.
    """
    for group in groups:
        for segment in group.may_train:
            try:
                _require(segment, len(group.prompt_of(segment)), routers, hidden_layers)
            except RoutingMismatch as error:
                raise RoutingMismatch(f"group {group.group_id}: {error}") from error


def _require(segment: Segment, prompt_tokens: int, routers: Routers, hidden_layers: int) -> None:
    experts = segment.routed_experts
    if experts is None:
        raise RoutingMismatch(
            "a completion without routed experts; learner.replay_experts must be on where the rollouts run "
            "too, and since before they sampled what is in the buffer"
        )
    needed = prompt_tokens + max(t for t, sampled in enumerate(segment.mask) if sampled)
    if experts.tokens < needed:
        raise RoutingMismatch(f"routed experts of {experts.tokens} tokens, and {needed} are needed")
    if (experts.layers, experts.top_k) != (hidden_layers, routers.top_k):
        raise RoutingMismatch(
            f"routed experts of {experts.layers} layers, {experts.top_k} a token, and the model has "
            f"{hidden_layers} layers, {routers.top_k} a token"
        )
    largest = int(_ids(experts)[:, routers.layers].max())
    if largest >= routers.experts:
        raise RoutingMismatch(f"routed expert {largest}, and the model has {routers.experts} a layer")


def _ids(experts: RoutedExperts) -> "np.ndarray[tuple[int, int, int], np.dtype[np.unsignedinteger]]":
    """Ids [tokens, layers, top_k]."""
    kind = np.dtype(f"<u{experts.id_bytes}")
    ids = np.frombuffer(experts.ids, dtype=kind)
    return ids.reshape(experts.tokens, experts.layers, experts.top_k)
