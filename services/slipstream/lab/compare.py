"""What each loss of the catalogue makes of a batch.

The slope of a loss by the logprobs of the tokens is its gradient, before the model multiplies it by the
gradient of the logprobs. The norms and cosines of a trial are those of slopes.

Suffix: _T tokens of the batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from slipstream.algorithms import policy_loss
from slipstream.algorithms.spec import (
    AGGREGATIONS,
    CORRECTIONS,
    OBJECTIVES,
    Aggregation,
    CustomObjective,
    LossSpec,
)
from slipstream.algorithms.spec.kinds import CUSTOM
from slipstream.lab.batch import Batch

Axis = Literal["objective", "correction", "aggregation"]
OWN = "this run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A loss to try, or why it cannot be tried on this batch."""

    axis: Axis
    name: str
    loss: LossSpec | None
    problem: str = ""

    @property
    def kind(self) -> str:
        """The name without the anchor."""
        return self.name.partition(",")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a loss makes of the batch. Shares are of all tokens."""

    candidate: Candidate
    excluded: float
    """Tokens without a gradient, those over age included."""
    over_age: float
    clipped_low: float
    clipped_high: float
    effective: float
    """Effective sample size of the gates of the n tokens that are not over age, (sum g)^2 / (n sum g^2)."""
    norm: float
    """Norm of the slope, in units of that of the run's own loss."""
    cosine: float
    """Between the slope and that of the run's own loss."""
    gates_T: Tensor
    slope_T: Tensor
    entropy_slope_T: Tensor | None
    """Derivative of the loss by the entropies; None without an entropy bonus."""
    young_T: Tensor
    """Bool: the tokens that are not over age."""


def own_candidate(loss: LossSpec) -> Candidate:
    """Return the loss of the run."""
    return Candidate(axis="objective", name=OWN, loss=loss)


def candidates(own: LossSpec, *, longest: int, functions: Sequence[str] = ()) -> Iterator[Candidate]:
    """Yield every loss that differs from the run's own in one axis.

    longest: most tokens of a completion, which the aggregation token_sum_norm divides by.
    functions: objectives of the user, `package.module:function`.
    """
    plain = LossSpec(
        objective=own.objective, aggregation=own.aggregation, kl=own.kl, max_staleness=own.max_staleness
    )
    made: dict[str, Any] = {kind: objective for kind, objective in OBJECTIVES.items() if kind != CUSTOM}
    made |= {name: partial(CustomObjective, function=name) for name in functions}
    for name, objective in made.items():
        yield _made(
            "objective", name, lambda o=objective: replace(plain, objective=o(), aggregation=_plain(own))
        )
    for kind, correction in CORRECTIONS.items():
        yield _corrected(kind, plain, correction)
    for name in AGGREGATIONS:
        most = longest if name == "token_sum_norm" else None
        aggregation = {"kind": name, "max_tokens": most}
        yield _made("aggregation", name, lambda a=aggregation: replace(plain, aggregation=Aggregation(**a)))


def _corrected(kind: str, plain: LossSpec, correction: Any) -> Candidate:
    """Return a loss with a correction; with the objective's ratio to the batch, if it needs that."""
    made = _made("correction", kind, lambda: replace(plain, corrections=(correction(),)))
    objective: Any = plain.objective
    if made.loss is not None or getattr(objective, "anchor", None) != "rollout":
        return made
    return _made(
        "correction",
        f"{kind}, anchor batch",
        lambda: replace(plain, objective=replace(objective, anchor="batch"), corrections=(correction(),)),
    )


def _plain(own: LossSpec) -> Aggregation:
    """Return the run's aggregation, or the nearest one that every objective may have."""
    return (
        Aggregation(kind="seq_mean_token_sum")
        if own.aggregation.kind == "seq_len_weighted"
        else own.aggregation
    )


def _made(axis: Axis, name: str, make: Any) -> Candidate:
    try:
        return Candidate(axis=axis, name=name, loss=make())
    except ValueError as error:
        return Candidate(axis=axis, name=name, loss=None, problem=str(error))


def tried(batch: Batch, own: LossSpec, others: Sequence[Candidate]) -> tuple[list[Trial], list[Candidate]]:
    """Return the trials of the run's own loss and of the others, and the candidates that cannot be tried.

    Errors: ValueError if the run's own loss cannot be computed on what is stored.
    """
    first = _trial(batch, own_candidate(own), None)
    trials, refused = [first], []
    for candidate in others:
        if candidate.loss is None:
            refused.append(candidate)
            continue
        try:
            trials.append(_trial(batch, candidate, first))
        except Exception as error:  # an objective of the user may raise anything
            if not isinstance(error, ValueError) and not isinstance(
                candidate.loss.objective, CustomObjective
            ):
                raise
            refused.append(replace(candidate, problem=" ".join(f"{error}".split()) or type(error).__name__))
    return trials, refused


def _trial(batch: Batch, candidate: Candidate, own: Trial | None) -> Trial:
    loss = candidate.loss
    assert loss is not None, "the caller tries losses only"
    logprobs_T = batch.logprobs_T.clone().requires_grad_()
    entropies_T = batch.entropies_T.clone().requires_grad_(loss.entropy is not None)
    advantages = batch.advantages_B
    result = policy_loss(
        loss,
        logprobs=logprobs_T,
        rollout_logprobs=batch.rollout_logprobs_T,
        old_logprobs=batch.logprobs_T,
        ref_logprobs=batch.reference_logprobs_T,
        advantages=batch.advantages_T if advantages is None else advantages,
        mask=torch.ones_like(batch.sequence_ids_T),
        sequence_ids=batch.sequence_ids_T,
        staleness=batch.staleness_T,
        counts=batch.counts,
        entropy=entropies_T,
    )
    result.loss.backward()
    slope_T, gates_T = logprobs_T.grad, result.gates_T
    assert slope_T is not None, "the loss has a slope"
    most = loss.max_staleness
    young_T = torch.ones_like(gates_T, dtype=torch.bool) if most is None else batch.staleness_T <= most
    norm = float(slope_T.norm())
    own_slope_T = slope_T if own is None else own.slope_T
    own_norm = float(own_slope_T.norm())
    return Trial(
        candidate=candidate,
        excluded=_share(gates_T == 0),
        over_age=_share(~young_T),
        clipped_low=_share(result.sides_T < 0),
        clipped_high=_share(result.sides_T > 0),
        effective=_effective(gates_T[young_T]),
        norm=norm / own_norm if own_norm else float("nan"),
        cosine=cosine(slope_T, own_slope_T),
        gates_T=gates_T,
        slope_T=slope_T,
        entropy_slope_T=entropies_T.grad,
        young_T=young_T,
    )


def cosine(one_T: Tensor, other_T: Tensor) -> float:
    """Return the cosine of two slopes; NaN if one of them is 0."""
    norms = float(one_T.norm() * other_T.norm())
    return float(one_T @ other_T) / norms if norms else float("nan")


def _share(which_T: Tensor) -> float:
    return float(which_T.double().mean())


def _effective(gates_T: Tensor) -> float:
    squares = float((gates_T**2).sum())
    return float(gates_T.sum()) ** 2 / (len(gates_T) * squares) if squares else 0.0
