"""Identities that every objective and every advantage has to satisfy, tested on random batches.

`slipstream algorithms check` tests those of an objective, and `slipstream validate` those of own functions.

Suffixes: _T packed tokens, _B sequences, _K tokens of the vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Final, Literal

import torch
from torch import Tensor

from slipstream.algorithms import aggregation, microbatch, trial_report
from slipstream.algorithms.advantages import group_advantages
from slipstream.algorithms.loss import policy_loss
from slipstream.algorithms.spec import Advantage, Aggregation, Dppo, LossSpec, Objective, Pg

AGAINST: Final = "near the ratio 1, no token's gradient is against its advantage"
LENGTHS: Final = (5, 3, 1, 6, 2, 4)
"""Tokens of the sequences of a batch."""
SEEDS: Final = (0, 1, 2)
TOLERANCE: Final = 1e-9
"""Largest difference of two equal gradients in float64, as a share of the largest slope."""
FAR: Final = 80.0
"""Log ratio, in nats, at which loss and gradient must be finite in float32."""
NEAR: Final = 1e-5
"""Log ratio, in nats, at which the gradient must still be close to that on policy."""
NEAR_TOLERANCE: Final = 1e-3
"""Largest difference of these gradients, as a share of the largest slope."""
DRIFTS: Final = (0.0, 0.01, -0.01, 0.1, -0.1)
"""Log ratios, in nats, at which no gradient may be against its advantage: the ratios 0.9 to 1.1.

They are small, so that a penalty on the ratio within an objective does not outweigh the advantage.
"""
LEAST_ADVANTAGE: Final = 0.5
"""Least size of an advantage there."""
TOP: Final = 3
"""K of the random top-K logprobs, for the divergences of dppo that read some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """An identity that has not been tested yet."""

    name: str
    test: Callable[[], str]
    """Returns why the identity does not hold; an empty text where it holds."""
    severity: Literal["error", "note"] = "note"
    """See `Identity.severity`."""

    def tested(self) -> trial_report.Identity:
        """Test it. Errors: what the function raises."""
        return trial_report.Identity(name=self.name, failure=self.test(), severity=self.severity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A packed batch of random numbers. Every sequence has a token that trains."""

    logprobs_T: Tensor
    anchor_T: Tensor
    """Logprobs of the policy under the ratio."""
    advantages_B: Tensor
    mask_T: Tensor
    ids_T: Tensor
    router_shift_T: Tensor
    top_TK: Tensor
    top_anchor_TK: Tensor

    def tokens(self, chosen_T: Tensor) -> "Batch":
        """Some tokens of the batch, whose sequences are numbered anew."""
        kept_B, ids_T = torch.unique(self.ids_T[chosen_T], return_inverse=True)
        tokens = {
            f.name: getattr(self, f.name)[chosen_T] for f in fields(self) if f.name.endswith(("_T", "_TK"))
        }
        return Batch(**{**tokens, "ids_T": ids_T}, advantages_B=self.advantages_B[kept_B])


def identities(objective: Objective) -> list[trial_report.Identity]:
    """Test every identity on several random batches. Errors: what the objective's function raises."""
    return [law.tested() for law in objective_laws(objective)]


def objective_laws(objective: Objective) -> list[Law]:
    """Return the identities of an objective, each to be tested on several random batches."""
    tests: dict[str, Callable[[Objective, Batch], str]] = {
        "on policy, the gradient is the plain policy gradient": _on_policy,
        "close to the ratio 1, the gradient is close to that on policy": _near,
        AGAINST: _against,
        "masked tokens have no gradient, and change nothing": _masked,
        "any packing and any split into microbatches give the same gradient": _packing,
        "advantages times 3 give the gradient times 3": _scale,
        f"loss and gradient are finite at log ratios of ±{FAR:g}": _far,
    }
    return [
        Law(
            name=name,
            test=partial(_first_failure, test, objective),
            severity="error" if name == AGAINST else "note",
        )
        for name, test in tests.items()
    ]


def advantage_laws(advantage: Advantage) -> list[Law]:
    """Return the identities of an advantage of completions."""
    name = "of two answers of a group with equal lengths, a higher reward gives no lower advantage"
    return [Law(name=name, test=partial(_against_rewards, advantage))]


def call_objective(objective: Objective) -> None:
    """Compute a gradient of one batch. Errors: what the objective's function raises."""
    _gradient(objective, _random_batch(0))


def call_advantage(advantage: Advantage) -> None:
    """Compute the advantages of one batch. Errors: what the advantage's function raises."""
    _advantages(advantage, [1.0, 0.0, 0.5, 0.0])


def _first_failure(test: Callable[[Objective, Batch], str], objective: Objective) -> str:
    failures = (test(objective, _random_batch(seed)) for seed in SEEDS)
    return next((text for text in failures if text), "")


def _against_rewards(advantage: Advantage) -> str:
    rewards = [1.0, -1.0, 0.25, 0.5]
    advantages = _advantages(advantage, rewards).tolist()
    for i, j in ((1, 0), (2, 3)):
        if advantages[i] > advantages[j]:
            return (
                f"the reward {rewards[j]:g} has the advantage {advantages[j]:.4g}, and the lower reward "
                f"{rewards[i]:g} of the same group has {advantages[i]:.4g}"
            )
    return ""


def _advantages(advantage: Advantage, rewards: Sequence[float]) -> Tensor:
    """The advantages of four answers in two groups."""
    return group_advantages(
        advantage, torch.tensor(rewards), torch.tensor([0, 0, 1, 1]), lengths=torch.tensor([4, 4, 4, 4])
    )


def _random_batch(seed: int) -> Batch:
    random = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=random, dtype=torch.float64)

    ids_T = torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS))
    first_T = torch.cat([torch.ones(1, dtype=torch.bool), ids_T[1:] != ids_T[:-1]])
    size = ids_T.shape[0]
    logprobs_T, top_TK = -1.0 - normal(size).abs(), -3.0 - normal(size, TOP).abs()
    return Batch(
        logprobs_T=logprobs_T,
        anchor_T=(logprobs_T + 0.3 * normal(size)).clamp(max=-0.01),
        advantages_B=normal(len(LENGTHS)),
        mask_T=first_T | (torch.rand(size, generator=random) < 0.7),
        ids_T=ids_T,
        router_shift_T=torch.rand(size, generator=random, dtype=torch.float64) * 0.5 + 0.5,
        top_TK=top_TK,
        top_anchor_TK=top_TK + 0.1 * normal(size, TOP),
    )


def _gradient(
    objective: Objective, batch: Batch, *, parts: Sequence[Tensor] | None = None, kind: str = "token_mean"
) -> Tensor:
    """The derivative of the loss by each logprob, [T], with the batch in microbatches of these tokens."""
    return _loss_and_gradient(objective, batch, parts=parts, kind=kind)[1]


def _loss_and_gradient(
    objective: Objective, batch: Batch, *, parts: Sequence[Tensor] | None = None, kind: str = "token_mean"
) -> tuple[Tensor, Tensor]:
    spec = LossSpec(objective=objective, aggregation=Aggregation(kind=kind))  # type: ignore[arg-type]
    counts = aggregation.count(batch.mask_T, batch.ids_T)
    live_T = batch.logprobs_T.clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for chosen_T in [torch.arange(live_T.shape[0])] if parts is None else parts:
        part = batch.tokens(chosen_T)
        needs_top = isinstance(objective, Dppo) and objective.needs_top_k
        out = policy_loss(
            spec,
            logprobs=live_T[chosen_T],
            rollout_logprobs=part.anchor_T,
            old_logprobs=part.anchor_T,
            advantages=part.advantages_B,
            mask=part.mask_T,
            sequence_ids=part.ids_T,
            counts=counts,
            router_shift=part.router_shift_T,
            top_k=_top_k(part) if needs_top else None,
        )
        total = total + out.loss.double()
    (gradient_T,) = torch.autograd.grad(total, live_T)
    return total.detach(), gradient_T


def _top_k(batch: Batch) -> microbatch.TopK:
    """The sampled token is none of the likeliest."""
    return microbatch.TopK(
        logprobs_TK=batch.top_TK,
        rollout_logprobs_TK=batch.top_anchor_TK,
        sampled_TK=torch.zeros_like(batch.top_TK, dtype=torch.bool),
    )


def _fresh(batch: Batch) -> Batch:
    """The batch with the anchor at the current policy, and routers that did not move."""
    return replace(
        batch,
        anchor_T=batch.logprobs_T,
        top_anchor_TK=batch.top_TK,
        router_shift_T=torch.ones_like(batch.router_shift_T),
    )


def _on_policy(objective: Objective, batch: Batch) -> str:
    fresh = _fresh(batch)
    for kind in ("token_mean", "seq_mean_token_mean"):
        expected_T = _gradient(Pg(), fresh, kind=kind)
        difference = _difference(_gradient(objective, fresh, kind=kind), expected_T)
        if difference:
            return difference
    return ""


def _near(objective: Objective, batch: Batch) -> str:
    """A jump at the ratio 1 would let the rounding errors of two engines decide which tokens train."""
    fresh = _fresh(batch)
    expected_T = _gradient(objective, fresh)
    for drift in (NEAR, -NEAR):
        moved = replace(fresh, anchor_T=fresh.logprobs_T - drift)
        difference = _difference(_gradient(objective, moved), expected_T, share=NEAR_TOLERANCE)
        if difference:
            return f"at the log ratio {drift:g} {difference}"
    return ""


def _against(objective: Objective, batch: Batch) -> str:
    """The loss of a token may not rise with its logprob where A > 0, nor fall where A < 0; 0 is a dropped
    token."""
    fresh, A_B = _fresh(batch), batch.advantages_B
    fresh = replace(fresh, advantages_B=A_B + LEAST_ADVANTAGE * A_B.sign())
    for drift in DRIFTS:
        moved = replace(fresh, anchor_T=fresh.logprobs_T - drift)
        gradient_T, A_T = _gradient(objective, moved), moved.advantages_B[moved.ids_T]
        against_T = gradient_T * A_T.sign()
        t = int(against_T.nan_to_num().argmax())
        if float(against_T[t]) > TOLERANCE * _largest(gradient_T):
            moves = "lowers" if float(A_T[t]) > 0 else "raises"
            return (
                f"at the log ratio {drift:g} a token with the advantage {float(A_T[t]):.3g} has the slope "
                f"{float(gradient_T[t]):.3g}, which {moves} its logprob"
            )
    return ""


def _masked(objective: Objective, batch: Batch) -> str:
    """Against other numbers at the masked tokens, and against the batch without them."""
    gradient_T = _gradient(objective, batch)
    if bool((gradient_T[~batch.mask_T] != 0).any()):
        return f"a masked token has the slope {float(gradient_T[~batch.mask_T].abs().max()):.3g}"
    others = replace(
        batch,
        logprobs_T=torch.where(batch.mask_T, batch.logprobs_T, -9.0),
        anchor_T=torch.where(batch.mask_T, batch.anchor_T, -0.1),
    )
    trained_T = batch.mask_T.nonzero().flatten()
    alone_T = _gradient(objective, batch.tokens(trained_T))
    return _difference(_gradient(objective, others), gradient_T) or _difference(
        alone_T, gradient_T[trained_T]
    )


def _packing(objective: Objective, batch: Batch) -> str:
    """Against one sequence a microbatch, and against the sequences in another order."""
    gradient_T = _gradient(objective, batch)
    sequences = [(batch.ids_T == b).nonzero().flatten() for b in range(len(LENGTHS))]
    pairs = [torch.cat(sequences[i : i + 2]) for i in range(0, len(sequences), 2)]
    for parts in (sequences, pairs):
        difference = _difference(_gradient(objective, batch, parts=parts), gradient_T)
        if difference:
            return difference
    order_T = torch.cat(sequences[::-1])
    turned = batch.tokens(order_T)
    last = len(LENGTHS) - 1
    turned = replace(turned, ids_T=last - turned.ids_T, advantages_B=turned.advantages_B.flip(0))
    return _difference(_gradient(objective, turned), gradient_T[order_T])


def _scale(objective: Objective, batch: Batch) -> str:
    tripled = replace(batch, advantages_B=3 * batch.advantages_B)
    return _difference(_gradient(objective, tripled), 3 * _gradient(objective, batch))


def _far(objective: Objective, batch: Batch) -> str:
    near_T = torch.full_like(batch.logprobs_T, -0.5)
    for sign, logprobs_T, anchor_T in (("+", near_T, near_T - FAR), ("-", near_T - FAR, near_T)):
        far = replace(batch, logprobs_T=logprobs_T.float(), anchor_T=anchor_T.float())
        loss, gradient_T = _loss_and_gradient(objective, far)
        if not bool(loss.isfinite()) or not bool(gradient_T.isfinite().all()):
            return f"at {sign}{FAR:g} the loss is {float(loss):g}, the largest slope {_largest(gradient_T):g}"
    return ""


def _largest(gradient_T: Tensor) -> float:
    return float(gradient_T.abs().max())


def _difference(got_T: Tensor, expected_T: Tensor, *, share: float = TOLERANCE) -> str:
    """Where two gradients differ most; empty where they differ by this share of the largest slope at most."""
    bound = share * max(_largest(expected_T), 1e-12)
    off_T = (got_T - expected_T).abs()
    if bool((off_T <= bound).all()):
        return ""
    t = int(off_T.nan_to_num(nan=torch.inf).argmax())
    return f"the slope of token {t} is {float(got_T[t]):.6g}, expected is {float(expected_T[t]):.6g}"
