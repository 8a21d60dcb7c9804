"""policy_loss: a loss worked by hand, over-age tokens, counts, and both forms of a specification."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from algorithms.loss_batches import make_batch, packed, run, spec_of
from algorithms.loss_reference import Batch, Sequence
from slipstream.algorithms import Counts, LossSpec, policy_loss
from slipstream.algorithms.spec import Aggregation, Cispo, Gspo, Is, Objective, Pg, PpoClip


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


def test_a_mapping_means_the_same_as_a_specification() -> None:
    batch = make_batch(1)
    spec = LossSpec(
        objective=PpoClip(anchor="batch", clip_high=0.3),
        aggregation=Aggregation(kind="token_sum_norm", max_tokens=9),
        max_staleness=3,
    )
    mapping: Any = {
        "objective": {"kind": "ppo_clip", "anchor": "batch", "clip_high": 0.3},
        "aggregation": {"kind": "token_sum_norm", "max_tokens": 9},
        "max_staleness": 3,
    }
    tensors: dict[str, Any] = packed(batch)
    assert float(policy_loss(mapping, **tensors).loss) == run(spec, batch).loss


def with_ages(ages: list[int]) -> Batch:
    """Two sequences of 3 and 2 tokens, all of which train, with the given ages."""
    tokens = [replace(t, trains=True) for s in make_batch(3, sequences=9, longest=9) for t in s.tokens][:5]
    tokens = [
        replace(t, staleness=age, advantage=a)
        for t, age, a in zip(tokens, ages, (1, 1, 1, -2, -2), strict=True)
    ]
    return [Sequence(tuple(tokens[:3])), Sequence(tuple(tokens[3:]))]


@pytest.mark.parametrize(
    "objective", [PpoClip(), Cispo(), Is(), Pg(allow_uncorrected=True), Gspo()], ids=repr
)
def test_an_over_age_token_has_no_gradient_and_stays_in_the_normaliser(objective: Objective) -> None:
    batch = with_ages([0, 9, 2, 3, 1])
    result = run(spec_of(objective, max_staleness=2), batch)
    expected = run(spec_of(objective), batch).gradient * torch.tensor([1, 0, 1, 0, 1])
    torch.testing.assert_close(result.gradient, expected)
    assert result.out.metrics["over_age_fraction"] == pytest.approx(2 / 5)
    assert (result.out.metrics["tokens"], result.out.metrics["trained_tokens"]) == (5, 3)


@pytest.mark.parametrize("objective", [PpoClip(), Cispo(), Is()], ids=repr)
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
def test_an_infinite_ratio_on_an_over_age_token_leaks_nowhere(objective: Objective, junk: float) -> None:
    batch = with_ages([0, 9, 2, 3, 1])
    dirty = packed(batch)["rollout_logprobs"].index_fill(0, torch.tensor([1, 3]), junk)
    result = run(spec_of(objective, max_staleness=2), batch, rollout_logprobs=dirty)
    torch.testing.assert_close(result.gradient, run(spec_of(objective, max_staleness=2), batch).gradient)
    assert math.isfinite(result.loss)
    assert all(map(math.isfinite, result.out.metrics.values()))


def test_a_nan_on_a_trained_token_is_not_hidden() -> None:
    batch = with_ages([0] * 5)
    dirty = packed(batch)["rollout_logprobs"].index_fill(0, torch.tensor([2]), math.nan)
    result = run(spec_of(PpoClip()), batch, rollout_logprobs=dirty)
    assert math.isnan(result.loss)
    assert math.isnan(result.out.metrics["mean_ratio"])


def test_advantages_by_token_equal_advantages_by_sequence() -> None:
    batch = with_ages([0] * 5)
    assert run(spec_of(PpoClip()), batch, by_token=True).loss == run(spec_of(PpoClip()), batch).loss


def test_counts_are_of_the_whole_batch() -> None:
    # half of a batch of 10 tokens: the gradient is half of that of a batch of its own 5
    batch = with_ages([0] * 5)
    alone = run(spec_of(Is()), batch).gradient
    shared = run(spec_of(Is()), batch, counts=Counts(tokens=10, sequences=4)).gradient
    torch.testing.assert_close(shared, alone / 2)


def test_a_second_backward_pass_adds_the_same_gradient() -> None:
    tensors: dict[str, Any] = packed(with_ages([0] * 5))
    logprobs = tensors.pop("logprobs").requires_grad_()
    for _ in range(2):
        (3 * policy_loss(spec_of(Is()), logprobs=logprobs, **tensors).loss).backward()
    expected = run(spec_of(Is()), with_ages([0] * 5)).gradient
    torch.testing.assert_close(logprobs.grad, 6 * expected)
