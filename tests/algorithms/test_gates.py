"""What the policy loss says of single tokens: gate weights and clip sides."""

import pytest
import torch
from algorithms.loss_batches import OBJECTIVES, make_batch, packed, run, spec_of
from slipstream.algorithms.spec import Cispo, Objective, Pg, PpoClip, Tis

BATCH = make_batch(11, sequences=30)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_the_gradient_of_a_token_is_its_gate_times_its_advantage(objective: Objective) -> None:
    tensors = packed(BATCH)
    bound = 0 if isinstance(objective, Pg) else 3
    result = run(spec_of(objective, max_staleness=bound), BATCH)
    advantages = tensors["advantages"][tensors["sequence_ids"]]
    tokens = int(tensors["mask"].sum())
    torch.testing.assert_close(result.gradient, -result.out.gates_T * advantages / tokens)
    idle = (tensors["mask"] == 0) | (tensors["staleness"] > bound)
    assert not result.out.gates_T[idle].any()
    assert not result.out.sides_T[idle].any()


def test_corrections_are_part_of_the_gate() -> None:
    tensors = packed(BATCH)
    result = run(spec_of(PpoClip(anchor="batch"), corrections=(Tis(cap=1.1),)), BATCH)
    advantages = tensors["advantages"][tensors["sequence_ids"]]
    torch.testing.assert_close(result.gradient, -result.out.gates_T * advantages / int(tensors["mask"].sum()))


def test_sides_are_the_ends_of_the_band_that_took_effect() -> None:
    tensors = packed(BATCH)
    ratio = (tensors["logprobs"] - tensors["rollout_logprobs"]).exp()
    advantages, mask = tensors["advantages"][tensors["sequence_ids"]], tensors["mask"].bool()
    clip = run(spec_of(PpoClip(clip_low=0.2, clip_high=0.3)), BATCH).out
    low, high = mask & (ratio < 0.8) & (advantages < 0), mask & (ratio > 1.3) & (advantages > 0)
    assert torch.equal(clip.sides_T, high.to(torch.int8) - low.to(torch.int8))
    assert low.any()
    assert high.any()
    capped = run(spec_of(Cispo(clip_high=0.3)), BATCH).out
    assert torch.equal(capped.sides_T == 1, mask & (ratio > 1.3))


def test_a_nan_behind_the_mask_is_in_no_gate() -> None:
    tensors = packed(BATCH)
    logprobs = torch.where(tensors["mask"] == 0, torch.nan, tensors["logprobs"])
    assert run(spec_of(Cispo()), BATCH, logprobs=logprobs).out.gates_T.isfinite().all()
