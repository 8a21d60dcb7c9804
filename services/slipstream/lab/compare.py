"""What each loss of the catalogue makes of a batch.

The slope of a loss by the logprobs of the tokens is its gradient, before the model multiplies it by the
gradient of the logprobs. The norms and cosines of a trial are those of slopes.

Suffix: _T tokens of the batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from slipstream.algorithms import policy_loss, spec, trial
from slipstream.algorithms.resolve import nearest
from slipstream.algorithms.spec.kinds import CUSTOM
from slipstream.lab.batch import Batch

Axis = Literal["objective", "correction", "aggregation"]
OWN = "this run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A loss to try, or why it cannot be tried on this batch."""

    axis: Axis
    name: str
    loss: spec.LossSpec | None
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


def own_candidate(loss: spec.LossSpec) -> Candidate:
    """Return the loss of the run."""
    return Candidate(axis="objective", name=OWN, loss=loss)


def candidates(own: spec.LossSpec, *, longest: int, functions: Sequence[str] = ()) -> Iterator[Candidate]:
    """Yield every loss that differs from the run's own in one axis; the axis has the run's own part as well.

    A part of another kind has its defaults. The name says what else it needs: another anchor, another
    aggregation, or a correction less.
    longest: most tokens of a completion, which the aggregation token_sum_norm divides by.
    functions: objectives of the user, `package.module:function`.
    """
    yield from _objectives(own, functions)
    for kind, correction in spec.CORRECTIONS.items():
        of_run = next((each for each in own.corrections if each.kind == kind), None)
        yield _with_correction(own, of_run or correction())
    for name in spec.AGGREGATIONS:
        yield _with_aggregation(own, name, longest)


def _objectives(own: spec.LossSpec, functions: Sequence[str]) -> Iterator[Candidate]:
    made: dict[str, Any] = {kind: objective for kind, objective in spec.OBJECTIVES.items() if kind != CUSTOM}
    made |= {name: partial(spec.CustomObjective, function=name) for name in functions}
    of_run = own.objective
    own_name = of_run.function if isinstance(of_run, spec.CustomObjective) else of_run.kind
    for name, objective in made.items():
        if name == own_name:
            yield Candidate(axis="objective", name=name, loss=own)
        else:
            yield _with_objective(own, name, objective())


def _with_objective(own: spec.LossSpec, name: str, chosen: spec.Objective) -> Candidate:
    """Return the run's loss with another objective, without the corrections that this one cannot have."""
    objective = _anchored(chosen, own.corrections)
    dropped = [c for c in own.corrections if c.needs_batch_anchor and objective.anchor != "batch"]
    kept = tuple(correction for correction in own.corrections if correction not in dropped)
    aggregation = _for_any_objective(own.aggregation)
    notes = [
        *(["anchor batch"] if objective != chosen else []),
        *(f"without {correction.kind}" for correction in dropped),
        *([aggregation.kind] if aggregation != own.aggregation else []),
    ]
    return _made(
        "objective",
        ", ".join([name, *notes]),
        lambda: replace(own, objective=objective, corrections=kept, aggregation=aggregation),
    )


def _with_correction(own: spec.LossSpec, chosen: spec.Correction) -> Candidate:
    """Return the run's loss with this correction alone; with the objective's ratio to the batch, if it needs
    that."""
    objective = _anchored(own.objective, [chosen])
    note = "" if objective == own.objective else ", anchor batch"
    return _made(
        "correction",
        f"{chosen.kind}{note}",
        lambda: replace(own, objective=objective, corrections=(chosen,)),
    )


def _with_aggregation(own: spec.LossSpec, name: spec.AggregationName, longest: int) -> Candidate:
    if name == own.aggregation.kind:
        return Candidate(axis="aggregation", name=name, loss=own)
    most = longest if name == "token_sum_norm" else None
    return _made(
        "aggregation", name, lambda: replace(own, aggregation=spec.Aggregation(kind=name, max_tokens=most))
    )


def _anchored(objective: Any, corrections: Sequence[spec.Correction]) -> Any:
    """Return an objective with the anchor batch, if a correction needs that and the objective may have it."""
    needed = any(correction.needs_batch_anchor for correction in corrections)
    has_choice = any(field.name == "anchor" for field in fields(objective))
    return replace(objective, anchor="batch") if needed and has_choice else objective


def _for_any_objective(aggregation: spec.Aggregation) -> spec.Aggregation:
    """Return the aggregation, or the nearest one that every objective may have."""
    only_of_gspo = aggregation.kind == "seq_len_weighted"
    return spec.Aggregation(kind="seq_mean_token_sum") if only_of_gspo else aggregation


def _made(axis: Axis, name: str, make: Any) -> Candidate:
    try:
        return Candidate(axis=axis, name=name, loss=make())
    except ValueError as error:
        return Candidate(axis=axis, name=name, loss=None, problem=str(error))


def tried(
    batch: Batch, own: spec.LossSpec, others: Sequence[Candidate]
) -> tuple[list[Trial], list[Candidate]]:
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
                candidate.loss.objective, spec.CustomObjective
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


class UnknownCandidate(ValueError):
    """A named candidate is not among the losses, or an objective of the user cannot be used."""


def check_functions(functions: Sequence[str]) -> None:
    """Check that objectives of the user can be imported and called. Errors: UnknownCandidate."""
    for function in functions:
        try:
            section = asdict(spec.CustomObjective(function=function))
        except ValueError as error:
            raise UnknownCandidate(str(error)) from error
        unusable = trial.try_section(section, axis="objective", seconds=0).unusable
        if unusable is not None:
            remedy = f"; {unusable.remedy}" if unusable.remedy else ""
            raise UnknownCandidate(f"objective {function}: {unusable.reason}{remedy}")


def chosen(candidates: Sequence[Candidate], names: Sequence[str]) -> list[Candidate]:
    """Return the candidates with these names, all without names. Errors: UnknownCandidate."""
    available = list(dict.fromkeys(candidate.kind for candidate in candidates))
    for name in names:
        if name not in available:
            raise UnknownCandidate(
                f"candidates: got {name!r}, needs some of {', '.join(available)}{nearest(name, available)}"
            )
    return [candidate for candidate in candidates if not names or candidate.kind in names]
