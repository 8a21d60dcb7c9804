"""Identities that every objective has to satisfy, tested on random batches: `slipstream algorithms check`.

Run as `python -m slipstream.algorithms.identities check|call AXIS SECTION`. AXIS is `objective` or
`advantage`, and SECTION is this section of a run in JSON. `check` prints which identities hold, and its exit
status is 1 when one does not. `call` only calls the function, and prints why it cannot be used.

Suffixes: _T packed tokens, _B sequences, _K tokens of the vocabulary.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import torch
from torch import Tensor

from slipstream.algorithms.advantages import group_advantages
from slipstream.algorithms.aggregation import count
from slipstream.algorithms.loss import policy_loss
from slipstream.algorithms.objectives import TopK
from slipstream.algorithms.resolve import resolve_advantage, resolve_loss, with_kind
from slipstream.algorithms.spec import Aggregation, Dppo, LossSpec, Objective, Pg

LENGTHS: Final = (5, 3, 1, 6, 2, 4)
"""Tokens of the sequences of a batch."""
SEEDS: Final = (0, 1, 2)
TOLERANCE: Final = 1e-9
"""Largest difference of two equal gradients in float64, as a share of the largest slope."""
FAR: Final = 80.0
"""Log ratio, in nats, at which loss and gradient must be finite in float32."""
TOP: Final = 3
"""K of the random top-K logprobs, for the divergences of dppo that read some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One identity, and why it does not hold."""

    name: str
    failure: str = ""
    """Empty where it holds."""


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


def identities(objective: Objective) -> list[Identity]:
    """Test every identity on several random batches. Errors: what the objective's function raises."""
    tests: dict[str, Callable[[Objective, Batch], str]] = {
        "on policy, the gradient is the plain policy gradient": _on_policy,
        "masked tokens have no gradient, and change nothing": _masked,
        "any packing and any split into microbatches give the same gradient": _packing,
        "advantages times 3 give the gradient times 3": _scale,
        f"loss and gradient are finite at log ratios of ±{FAR:g}": _far,
    }
    results = []
    for name, test in tests.items():
        failures = (test(objective, _random_batch(seed)) for seed in SEEDS)
        results.append(Identity(name=name, failure=next((text for text in failures if text), "")))
    return results


def why_unusable(section: Mapping[str, Any], *, axis: str) -> str:
    """Return why a function cannot be imported, called or trained with; empty where it can be.

    section: the `objective` or `advantage` of a run, as axis says.
    """
    try:
        if axis == "objective":
            _gradient(_objective(section), _random_batch(0))
        else:
            rewards, groups = torch.tensor([1.0, 0.0, 0.5, 0.0]), torch.tensor([0, 0, 1, 1])
            group_advantages(resolve_advantage(section), rewards, groups, lengths=torch.tensor([3, 4, 2, 6]))
    except Exception as error:  # the function is the user's, and may raise anything
        return _described(error)
    return ""


def _described(error: Exception) -> str:
    """The message of an error; a ValueError explains itself, others need their type."""
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def _objective(section: Mapping[str, Any]) -> Objective:
    return resolve_loss({"objective": with_kind(section), "aggregation": "token_mean"}).objective


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
    counts = count(batch.mask_T, batch.ids_T)
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


def _top_k(batch: Batch) -> TopK:
    """The sampled token is none of the likeliest."""
    return TopK(
        logprobs_TK=batch.top_TK,
        rollout_logprobs_TK=batch.top_anchor_TK,
        sampled_TK=torch.zeros_like(batch.top_TK, dtype=torch.bool),
    )


def _on_policy(objective: Objective, batch: Batch) -> str:
    fresh = replace(
        batch,
        anchor_T=batch.logprobs_T,
        top_anchor_TK=batch.top_TK,
        router_shift_T=torch.ones_like(batch.router_shift_T),
    )
    for kind in ("token_mean", "seq_mean_token_mean"):
        expected_T = _gradient(Pg(), fresh, kind=kind)
        difference = _difference(_gradient(objective, fresh, kind=kind), expected_T)
        if difference:
            return difference
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


def _difference(got_T: Tensor, expected_T: Tensor) -> str:
    """Where two gradients differ most; empty where they are equal."""
    bound = TOLERANCE * max(_largest(expected_T), 1e-12)
    off_T = (got_T - expected_T).abs()
    if bool((off_T <= bound).all()):
        return ""
    t = int(off_T.nan_to_num(nan=torch.inf).argmax())
    return f"the slope of token {t} is {float(got_T[t]):.6g}, expected is {float(expected_T[t]):.6g}"


def _print_check(section: Mapping[str, Any]) -> int:
    try:
        results = identities(_objective(section))
    except Exception as error:  # the function is the user's, and may raise anything
        print(f"cannot be used: {_described(error)}")
        return 1
    for identity in results:
        print(f"  {'fails' if identity.failure else 'holds'}  {identity.name}")
        if identity.failure:
            print(f"         {identity.failure}")
    return int(any(identity.failure for identity in results))


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 where every identity holds, or the function was called."""
    action, axis, text = arguments
    section = json.loads(text)
    if action == "check":
        return _print_check(section)
    print(json.dumps({"unusable": why_unusable(section, axis=axis)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
