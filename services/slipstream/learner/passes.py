"""What a loss needs to know before the first gradient: old and reference logprobs, statistics of a batch.

Each is a forward pass without gradient, made only where the algorithm asks for it.

Shape suffixes: T sampled tokens of a row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from slipstream.algorithms import m2po_limit
from slipstream.algorithms.spec import LossSpec, M2po
from slipstream.learner.batch import Row
from slipstream.learner.logprobs import Selected
from slipstream.learner.model import Policy
from slipstream.learner.routing import Routed

Forward = Callable[[Policy, Row], Selected]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of one row before it is trained on; None where the loss has no use for it."""

    old_T: torch.Tensor | None = None
    """Logprobs of the policy at the start of the batch."""
    ref_T: torch.Tensor | None = None
    """Logprobs of the reference."""
    selected_T: torch.Tensor | None = None
    """The tokens that top_entropy lets train."""
    routed: Routed | None = None
    """The experts that were active at the start of the batch, and their router's logprobs then, for rspo."""


def look_ahead(
    loss: LossSpec, rows: Sequence[Row], policy: Policy, reference: Policy | None, forward: Forward
) -> list[Known]:
    """Look at every row of a batch before its first update."""
    now = [without_gradient(forward, policy, row) for row in rows] if _needs_policy(loss) else None
    needed = reference if loss.needs_ref_logprobs else None
    ref = None if needed is None else [without_gradient(forward, needed, row) for row in rows]
    chosen = None
    if loss.top_entropy is not None and now is not None:
        chosen = largest([found.entropy_T for found in now], share=loss.top_entropy.share)
    return [
        Known(
            old_T=now[i].logprobs_T if now is not None and _keeps_old(loss) else None,
            ref_T=None if ref is None else ref[i].logprobs_T,
            selected_T=None if chosen is None else chosen[i],
            routed=None if now is None else now[i].routed,
        )
        for i in range(len(rows))
    ]


def drift_bound(
    loss: LossSpec,
    rows: Sequence[Row],
    advantages: Sequence[torch.Tensor],
    known: Sequence[Known],
    policy: Policy,
    forward: Forward,
    *,
    updated: bool,
) -> float | None:
    """The bound of m2po over a whole minibatch; None without it. `updated`: the policy has moved since
    `look_ahead`, so that the scope `harmful` needs its logprobs again."""
    spec = next((c for c in loss.corrections if isinstance(c, M2po)), None)
    if spec is None or not rows:
        return None
    again = updated and spec.scope == "harmful"
    parts = [
        without_gradient(forward, policy, row).logprobs_T if again else found.old_T
        for row, found in zip(rows, known, strict=True)
    ]
    logprobs_T = torch.cat([part for part in parts if part is not None])
    return m2po_limit(
        loss,
        logprobs=logprobs_T,
        rollout_logprobs=torch.cat([row.rollout_logprobs_T for row in rows]),
        advantages=torch.cat([a[r.sequence_ids_T] for a, r in zip(advantages, rows, strict=True)]),
        mask=torch.ones_like(logprobs_T),
    )


def largest(values: Sequence[torch.Tensor], *, share: float) -> list[torch.Tensor]:
    """Which elements are among the given share of the largest of all; ties with the last one are in."""
    if not any(value.numel() for value in values):
        return [torch.zeros_like(value, dtype=torch.bool) for value in values]
    whole = torch.cat(list(values))
    count = max(1, round(share * whole.numel()))
    least = whole.topk(count).values[-1]
    return [value >= least for value in values]


def _needs_policy(loss: LossSpec) -> bool:
    return _keeps_old(loss) or loss.top_entropy is not None


def _keeps_old(loss: LossSpec) -> bool:
    return loss.needs_old_logprobs or any(isinstance(c, M2po) for c in loss.corrections)


def without_gradient(forward: Forward, policy: Policy, row: Row) -> Selected:
    """The forward pass of one row, without gradient."""
    with torch.no_grad():
        return forward(policy, row)
