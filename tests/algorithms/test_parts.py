"""A microbatch is processed in parts of whole sequences; the result does not depend on the cuts."""

from typing import Any

import pytest
import torch
from algorithms.loss_batches import OBJECTIVES, packed, spec_of, top_k_of
from algorithms.loss_batches import make_batch as ragged
from algorithms.loss_reference import Batch
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream.algorithms import LossSpec, policy_loss
from slipstream.algorithms.layout import PART, lay_out
from slipstream.algorithms.microbatch import Microbatch, parts
from slipstream.algorithms.sloped import with_slope
from slipstream.algorithms.spec import Dppo, Entropy, Kl, M2po, Objective, PpoClip
from torch import Tensor


def whole(batch: Batch, size: int, *, by_token: bool = False) -> Microbatch:
    tensors = packed(batch, by_token=by_token)
    del tensors["group_ids"]
    layout = lay_out(tensors.pop("mask"), tensors.pop("sequence_ids"), part=size)
    advantages = tensors.pop("advantages")
    named = {f"{name}_T": tensor for name, tensor in tensors.items()}
    return Microbatch(layout=layout, advantages=advantages, top_k=top_k_of(batch), **named)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31), sequences=st.integers(1, 40), size=st.integers(1, 50), by_token=st.booleans()
)
def test_parts_put_together_are_the_microbatch(seed: int, sequences: int, size: int, by_token: bool) -> None:
    batch = ragged(seed, sequences=sequences, by_token=by_token)
    given_to = whole(batch, size, by_token=by_token)
    made_parts = list(parts(given_to))
    for name in ("logprobs_T", "rollout_logprobs_T", "mask_T", "staleness_T", "advantages"):
        rejoined = torch.cat([getattr(part.microbatch, name) for part in made_parts])
        assert torch.equal(rejoined, getattr(given_to, name)), name
    ids = torch.cat([part.microbatch.sequence_ids_T + part.sequences.start for part in made_parts])
    assert torch.equal(ids, given_to.sequence_ids_T)
    assert all(part.microbatch.sequence_ids_T[0] == 0 for part in made_parts)
    longest = max(len(sequence.tokens) for sequence in batch)
    assert all(part.microbatch.logprobs_T.shape[0] < size + longest for part in made_parts)


def test_a_sequence_longer_than_a_part_stays_whole() -> None:
    # tokens 0-1 | 2-10 | 11; the cuts at 4 and 8 are inside the second sequence and move to its start
    lengths = [2, 9, 1]
    batch = [ragged(k, sequences=1)[0] for k in range(3)]
    batch = [s._replace(tokens=s.tokens[:1] * n) for s, n in zip(batch, lengths, strict=True)]
    cuts = [(part.tokens.start, part.tokens.stop) for part in parts(whole(batch, 4))]
    assert cuts == [(0, 2), (2, 12)]


def test_no_tokens_are_one_empty_part() -> None:
    nothing = torch.zeros(0)
    empty = Microbatch(logprobs_T=nothing, advantages=nothing, layout=lay_out(nothing, nothing.long()))
    assert [part.microbatch.logprobs_T.shape[0] for part in parts(empty)] == [0]


REPEATS = 400


def once_and_again() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return a ragged batch, and that batch again and again until it is longer than two parts."""
    once = packed(ragged(3, sequences=40, longest=12))
    tokens, sequences = once["mask"].shape[0], once["advantages"].shape[0]
    assert tokens * REPEATS > 2 * PART
    again = {name: value.repeat(REPEATS) for name, value in once.items()}
    again["sequence_ids"] += torch.arange(REPEATS).repeat_interleave(tokens) * sequences
    return once, again


WITHOUT_TOP_K = [o for o in OBJECTIVES if not (isinstance(o, Dppo) and o.needs_top_k)]


@pytest.mark.parametrize("objective", WITHOUT_TOP_K, ids=repr)
def test_a_batch_repeated_over_several_parts_has_the_loss_and_metrics_of_one(objective: Objective) -> None:
    # every mean over 400 copies of a batch is that of the batch, and a token's share of the gradient is 1/400
    once, again = once_and_again()
    spec = spec_of(objective, "prompt_mean", kl=Kl(coefficient=0.1))
    assert_same_mean(spec, once, again)


@pytest.mark.parametrize("scope", ["harmful", "all"])
def test_the_bound_of_m2po_is_that_of_all_parts(scope: Any) -> None:
    once, again = once_and_again()
    correction = M2po(scope=scope, threshold=0.01)
    assert_same_mean(spec_of(PpoClip(anchor="batch"), corrections=(correction,)), once, again)


def test_the_entropy_bonus_is_over_all_parts() -> None:
    once, again = once_and_again()
    once["entropy"] = torch.linspace(0, 2, once["mask"].shape[0], dtype=torch.float64)
    again["entropy"] = once["entropy"].repeat(REPEATS)
    assert_same_mean(spec_of(PpoClip(), entropy=Entropy(coefficient=0.5)), once, again)


def assert_same_mean(spec: LossSpec, once: dict[str, Tensor], again: dict[str, Tensor]) -> None:
    results: list[tuple[Tensor, Tensor, dict[str, float]]] = []
    for tensors in (once, again):
        logprobs = tensors["logprobs"].clone().requires_grad_()
        out = policy_loss(spec, **(tensors | {"logprobs": logprobs}))  # type: ignore[arg-type]
        out.loss.backward()
        assert isinstance(logprobs.grad, Tensor)
        results.append((out.loss.detach(), logprobs.grad, out.metrics))
    (loss, gradient, metrics), (long_loss, long_gradient, long_metrics) = results
    torch.testing.assert_close(long_loss, loss)
    torch.testing.assert_close(long_gradient * REPEATS, gradient.repeat(REPEATS))
    for name, value in metrics.items():
        counted = name.removesuffix("_positive").removesuffix("_negative").removesuffix("_zero")
        factor = REPEATS if counted in ("tokens", "trained_tokens", "dropped_sequences") else 1
        assert long_metrics[name] == pytest.approx(value * factor), name


def test_a_sloped_number_has_its_value_and_its_slope_in_the_dtype_of_what_it_is_a_function_of() -> None:
    by = torch.tensor([1.0, 2.0], dtype=torch.bfloat16, requires_grad=True)
    number = with_slope(torch.tensor(7.0, dtype=torch.float64), by, torch.tensor([3.0, -4.0]))
    (number * 2).backward()
    assert (number.item(), number.dtype) == (7.0, torch.float32)
    assert by.grad is not None
    assert by.grad.dtype == torch.bfloat16
    assert by.grad.tolist() == [6.0, -8.0]
