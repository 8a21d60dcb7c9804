"""The policy loss against its closed-form gradient - w g, and the invariants of ALGORITHMS.md, section 3."""

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream.algorithms import (
    Aggregation,
    Counts,
    LossSpec,
    count,
    finalize,
    merge,
    policy_loss,
    token_weights,
)
from slipstream.algorithms.spec import AGGREGATIONS, Cispo, Is, Objective, Pg, PpoClip, band
from torch import Tensor

OBJECTIVES: list[Objective] = [
    PpoClip(),
    PpoClip(anchor="batch", clip_low=0.3, clip_high=None),
    PpoClip(clip_low=None, clip_high=0.5),
    Cispo(clip_high=0.5),
    Cispo(anchor="batch", clip_low=0.4, clip_high=0.5),
    Pg(),
    Is(),
    Is(anchor="batch"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Five sequences of three prompts, with masked tokens among the others."""

    logprobs: Tensor
    rollout: Tensor
    old: Tensor
    advantages: Tensor
    mask: Tensor
    ids: Tensor
    groups: Tensor


def make_batch(seed: int = 0, *, sign: float | None = None) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 4, 4])
    size = ids.shape[0]

    def normal(count: int) -> Tensor:
        return torch.randn(count, generator=generator, dtype=torch.float64)

    logprobs = normal(size) - 3
    advantages = normal(5)
    return Batch(
        logprobs=logprobs,
        rollout=logprobs + 0.5 * normal(size),
        old=logprobs + 0.5 * normal(size),
        advantages=advantages if sign is None else sign * advantages.abs(),
        mask=torch.tensor([1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 0, 1]),
        ids=ids,
        groups=torch.tensor([3, 1, 3, 1, 7]),
    )


def spec_of(objective: Objective, kind: Any = "token_mean", max_staleness: int | None = None) -> LossSpec:
    aggregation = Aggregation(kind=kind, max_tokens=9 if kind == "token_sum_norm" else None)
    return LossSpec(objective=objective, aggregation=aggregation, max_staleness=max_staleness)


def run(spec: Any, batch: Batch, **arguments: Any) -> tuple[Tensor, Tensor, Any]:
    """Return loss, gradient by logprob, and the whole result."""
    logprobs = batch.logprobs.clone().requires_grad_()
    given: dict[str, Any] = {
        "rollout_logprobs": batch.rollout,
        "old_logprobs": batch.old,
        "group_ids": batch.groups,
    }
    result = policy_loss(
        spec,
        logprobs=logprobs,
        advantages=batch.advantages,
        mask=batch.mask,
        sequence_ids=batch.ids,
        **(given | arguments),
    )
    result.loss.backward()
    assert logprobs.grad is not None
    return result.loss.detach(), logprobs.grad, result


def take(batch: Batch, sequences: list[int]) -> Batch:
    """Return the given sequences in the given order, renumbered."""
    rows = torch.cat([torch.nonzero(batch.ids == sequence).flatten() for sequence in sequences])
    ids = torch.cat([torch.full((int((batch.ids == s).sum()),), i) for i, s in enumerate(sequences)])
    tokens = {name: getattr(batch, name)[rows] for name in ("logprobs", "rollout", "old", "mask")}
    return Batch(ids=ids, advantages=batch.advantages[sequences], groups=batch.groups[sequences], **tokens)


def oracle(objective: Objective, ratio: float, advantage: float) -> float:
    """The gradient weight g of ALGORITHMS.md, section 2.2, for one token."""
    low, high = band(objective)
    if isinstance(objective, Pg):
        return advantage
    if isinstance(objective, Is):
        return ratio * advantage
    if isinstance(objective, Cispo):
        return min(max(ratio, low), high) * advantage
    lost = (advantage > 0 and ratio > high) or (advantage < 0 and ratio < low)
    return 0.0 if lost else ratio * advantage


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("kind", AGGREGATIONS)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_autograd_is_minus_weight_times_closed_form(objective: Objective, kind: str, sign: float) -> None:
    batch = make_batch(1, sign=sign)
    spec = spec_of(objective, kind)
    anchor = batch.rollout if isinstance(objective, Pg) or objective.anchor == "rollout" else batch.old
    ratio = (batch.logprobs - anchor).exp().tolist()
    g = [oracle(objective, r, float(batch.advantages[i])) for r, i in zip(ratio, batch.ids, strict=True)]
    weight = token_weights(spec.aggregation, batch.mask, batch.ids, group_ids=batch.groups)
    torch.testing.assert_close(run(spec, batch)[1], -weight * torch.tensor(g, dtype=torch.float64))


def test_a_loss_worked_by_hand() -> None:
    # two sequences of 2 and 1 tokens, r = 1, 2 | 1/2, A = 1, -2, ppo_clip 0.2, seq_mean_token_mean:
    # J = 1, min(2, 1.2) | min(-1, -1.6); w = 1/4, 1/4 | 1/2; L = -(0.25 + 0.3 - 0.8) = 0.25
    # g = 1, 0 | 0
    logprobs = torch.tensor([0.0, math.log(2), math.log(0.5)]).requires_grad_()
    out = policy_loss(
        {"preset": "grpo"},
        logprobs=logprobs,
        rollout_logprobs=torch.zeros(3),
        advantages=torch.tensor([1.0, -2.0]),
        mask=torch.ones(3),
        sequence_ids=torch.tensor([0, 0, 1]),
    )
    out.loss.backward()
    assert float(out.loss.detach()) == pytest.approx(0.25)
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-0.25, 0.0, 0.0])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(OBJECTIVES), st.sampled_from(sorted(AGGREGATIONS)))
def test_on_policy_every_objective_is_the_policy_gradient(seed: int, objective: Objective, kind: str) -> None:
    batch = make_batch(seed)
    batch = replace(batch, rollout=batch.logprobs, old=batch.logprobs)
    torch.testing.assert_close(run(spec_of(objective, kind), batch)[1], run(spec_of(Pg(), kind), batch)[1])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_an_open_band_is_no_band(seed: int) -> None:
    batch = make_batch(seed)
    loss, gradient, _ = run(spec_of(Is()), batch)
    open_loss, open_gradient, _ = run(spec_of(PpoClip(clip_low=None, clip_high=None)), batch)
    _, cispo_gradient, _ = run(spec_of(Cispo(clip_low=None, clip_high=None)), batch)
    torch.testing.assert_close((open_loss, open_gradient), (loss, gradient))
    torch.testing.assert_close(cispo_gradient, gradient)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from(OBJECTIVES),
    st.sampled_from(sorted(AGGREGATIONS)),
    st.permutations(range(5)),
    st.integers(0, 5),
)
def test_a_split_into_microbatches_changes_nothing(
    seed: int, objective: Objective, kind: str, order: list[int], cut: int
) -> None:
    batch, spec = make_batch(seed), spec_of(objective, kind)
    loss, _, whole = run(spec, batch)
    counts = count(batch.mask, batch.ids, batch.groups)
    assert counts.prompt_tokens_B is not None
    parts: list[Any] = []
    gradients: dict[int, Tensor] = {}
    for sequences in (part for part in (order[:cut], order[cut:]) if part):
        share = replace(counts, prompt_tokens_B=counts.prompt_tokens_B[sequences])
        micro = take(batch, sequences)
        part_loss, gradient, result = run(spec, micro, counts=share)
        parts.append((part_loss, result.sums))
        gradients |= {s: gradient[micro.ids == i] for i, s in enumerate(sequences)}
    torch.testing.assert_close(torch.stack([part for part, _ in parts]).sum(), loss)
    torch.testing.assert_close(torch.cat([gradients[s] for s in range(5)]), run(spec, batch)[1])
    assert finalize(merge(sums for _, sums in parts)) == pytest.approx(whole.metrics)


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_junk_outside_the_mask_leaks_nowhere(objective: Objective, junk: float) -> None:
    batch = make_batch(2)
    out = batch.mask == 0
    dirty = replace(
        batch,
        **{name: getattr(batch, name).masked_fill(out, junk) for name in ("logprobs", "rollout", "old")},
    )
    per_token = batch.advantages[batch.ids].masked_fill(out, junk)
    loss, gradient, clean = run(spec_of(objective), batch, ref_logprobs=batch.old)
    dirty_loss, dirty_gradient, result = run(
        spec_of(objective), replace(dirty, advantages=per_token), ref_logprobs=dirty.old
    )
    torch.testing.assert_close((dirty_loss, dirty_gradient), (loss, gradient))
    assert dirty_gradient[out].tolist() == [0.0] * 3
    assert result.metrics == pytest.approx(clean.metrics)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_an_over_age_token_has_no_gradient_and_stays_in_the_normaliser(objective: Objective) -> None:
    batch = make_batch(3)
    objective = replace(objective, allow_uncorrected=True) if isinstance(objective, Pg) else objective
    staleness = torch.tensor([0, 9, 3, 2, 2, 0, 0, 1, 5, 0, 0, 2])
    _, gradient, result = run(spec_of(objective, max_staleness=2), batch, staleness=staleness)
    expected = run(spec_of(objective), batch)[1].masked_fill(staleness > 2, 0.0)
    torch.testing.assert_close(gradient, expected)
    assert result.metrics["over_age_fraction"] == pytest.approx(2 / 9)
    assert (result.metrics["tokens"], result.metrics["trained_tokens"]) == (9, 7)


def test_an_infinite_ratio_on_an_over_age_token_leaks_nowhere() -> None:
    batch = make_batch(3)
    batch = replace(batch, rollout=batch.rollout.index_fill(0, torch.tensor([2]), math.nan))
    staleness = torch.zeros(12, dtype=torch.long).index_fill(0, torch.tensor([2]), 8)
    loss, gradient, _ = run(spec_of(PpoClip(), max_staleness=2), batch, staleness=staleness)
    assert loss.isfinite()
    assert gradient.isfinite().all()
    assert gradient[2] == 0


def test_a_nan_on_a_trained_token_is_not_hidden() -> None:
    batch = make_batch(3)
    batch = replace(batch, rollout=batch.rollout.index_fill(0, torch.tensor([2]), math.nan))
    loss, _, result = run(spec_of(PpoClip()), batch)
    assert loss.isnan()
    assert math.isnan(result.metrics["max_ratio"])


@pytest.mark.parametrize("kind", AGGREGATIONS)
def test_a_batch_without_tokens_is_zero_with_zero_gradient(kind: str) -> None:
    batch = make_batch()
    loss, gradient, result = run(spec_of(Cispo(), kind), replace(batch, mask=torch.zeros(12)))
    assert float(loss) == 0.0
    assert gradient.abs().sum() == 0.0
    assert result.metrics["mean_ratio"] == result.metrics["max_ratio"] == 0.0
    nothing = Batch(**{name: getattr(batch, name)[:0] for name in Batch.__dataclass_fields__})
    loss, gradient, _ = run(spec_of(Cispo(), kind), nothing)
    assert float(loss) == 0.0
    assert gradient.shape == (0,)


def test_advantages_by_token_equal_advantages_by_sequence() -> None:
    batch = make_batch(4)
    by_token = replace(batch, advantages=batch.advantages[batch.ids])
    assert float(run(spec_of(PpoClip()), by_token)[0]) == float(run(spec_of(PpoClip()), batch)[0])


def test_half_precision_logprobs_are_widened() -> None:
    batch = make_batch(4)
    loss, gradient, _ = run(spec_of(PpoClip()), replace(batch, logprobs=batch.logprobs.bfloat16()))
    assert loss.dtype == torch.float32
    assert gradient.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("objective", "arguments", "message"),
    [
        (PpoClip(), {"rollout_logprobs": None}, "rollout_logprobs: got None, ppo_clip with anchor rollout"),
        (Cispo(anchor="batch"), {"old_logprobs": None}, "old_logprobs: got None, cispo with anchor batch"),
        (Is(), {"rollout_logprobs": torch.zeros(3)}, "rollout_logprobs: got shape"),
        (Is(), {"ref_logprobs": torch.zeros(12, dtype=torch.long)}, "ref_logprobs: got torch.int64"),
        (Is(), {"staleness": torch.zeros(3)}, "staleness: got shape"),
    ],
)
def test_an_input_that_is_missing_or_malformed_is_named(
    objective: Objective, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run(spec_of(objective), make_batch(), **arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logprobs": torch.zeros(3, 4)}, "logprobs: got shape"),
        ({"advantages": torch.zeros(4)}, r"advantages: got shape \[4\], needs \[5\].*or \[12\]"),
        ({"advantages": torch.zeros(5, dtype=torch.long)}, "advantages: got torch.int64"),
        ({"mask": torch.full((12,), 0.5)}, "mask: got values other than 0 and 1"),
        ({"mask": torch.ones(11)}, "mask: got shape"),
        ({"ids": torch.arange(12).flip(0)}, "sequence_ids: got"),
        ({"ids": torch.arange(12.0)}, "sequence_ids: got torch.float32"),
    ],
)
def test_a_malformed_batch_is_refused(change: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(spec_of(Is()), replace(make_batch(), **change))


def test_a_limit_of_age_needs_the_ages() -> None:
    with pytest.raises(ValueError, match="staleness: got None, max_staleness 1"):
        run(spec_of(Is(), max_staleness=1), make_batch())


def test_counts_are_of_the_whole_batch() -> None:
    # half of a batch of 18 tokens: the gradient is half of that of a batch of its own 9
    batch = make_batch(5)
    alone = run(spec_of(Is()), batch)[1]
    torch.testing.assert_close(
        run(spec_of(Is()), batch, counts=Counts(tokens=18, sequences=10))[1], alone / 2
    )
