"""One call of policy_loss makes the host wait for the device five times at most, however long the row."""

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from algorithms.loss_batches import OBJECTIVES, spec_of
from slipstream.algorithms import (
    PRESETS,
    Counts,
    LossSpec,
    Tally,
    Taught,
    TeacherTop,
    TopK,
    count,
    lay_out,
    policy_loss,
    resolve_loss,
)
from slipstream.algorithms.spec import (
    AGGREGATIONS,
    ClipCov,
    Correction,
    Distillation,
    Dppo,
    DriftPenalty,
    Entropy,
    GeometricRejection,
    Gspo,
    IcePop,
    Kl,
    KlCov,
    M2po,
    Mis,
    Objective,
    Opsm,
    OutlierTokens,
    Pg,
    PpoClip,
    Tis,
    TopEntropy,
)

MOST = 5
SIZES = {"small": (50, 4), "large": (100_000, 400)}
"""Tokens and sequences; the large row goes through in four parts."""
K = 3

CORRECTIONS: list[Correction] = [
    *(Tis(), Tis(level="sequence"), Mis(), IcePop(), GeometricRejection(), Opsm(), OutlierTokens()),
    *(M2po(), M2po(scope="all")),
]
OPTIONS: dict[str, dict[str, Any]] = {
    "kl": {"kl": Kl(coefficient=0.1)},
    "drift": {"drift_penalty": DriftPenalty(level="sequence")},
    "entropy": {"entropy": Entropy(coefficient=0.1)},
    "top_entropy": {"top_entropy": TopEntropy()},
    "clip_cov": {"clip_cov": ClipCov()},
    "kl_cov": {"kl_cov": KlCov()},
    "one_minus_ref": {"token_weight": "one_minus_ref"},
    "max_staleness": {"max_staleness": 2},
}
PRESET_LOSSES = {
    name: resolve_loss(
        {"preset": name}
        | (
            {"aggregation": {"kind": "token_sum_norm", "max_tokens": 16}}
            if preset.aggregation == "token_sum_norm"
            else {}
        )
    )
    for name, preset in PRESETS.items()
}
LOSSES: dict[str, LossSpec] = {
    **{repr(objective): spec_of(objective) for objective in OBJECTIVES},
    **{f"preset {name}": loss for name, loss in PRESET_LOSSES.items()},
    **{kind: spec_of(Gspo(), kind) for kind in AGGREGATIONS},
    **{repr(c): spec_of(PpoClip(anchor="batch"), corrections=(c,)) for c in CORRECTIONS},
    **{name: spec_of(PpoClip(), **axes) for name, axes in OPTIONS.items()},
    **{
        f"distillation {kind}": spec_of(Pg(), distillation=Distillation(kind=kind, top_k=K))
        for kind in ("reverse", "forward", "mixed")
    },
    "distillation advantage": spec_of(Pg(), distillation=Distillation()),
}


@pytest.fixture(scope="module")
def operations() -> ModuleType:
    """Imports the counter of `python -m benchmarks.objectives --count`."""
    return importlib.import_module("benchmarks.objectives.operations")


def row(tokens: int, sequences: int) -> dict[str, Any]:
    """What every loss can be given of a row with equally long sequences, a tenth of it outside the mask."""
    source = torch.Generator().manual_seed(0)

    def logprobs(*shape: int) -> torch.Tensor:
        return -0.5 - torch.rand(*shape, generator=source)

    return {
        "logprobs": logprobs(tokens),
        "rollout_logprobs": logprobs(tokens),
        "old_logprobs": logprobs(tokens),
        "ref_logprobs": logprobs(tokens),
        "advantages": torch.randn(sequences, generator=source),
        "mask": (torch.rand(tokens, generator=source) < 0.9).long(),
        "sequence_ids": torch.arange(tokens) * sequences // tokens,
        "group_ids": torch.arange(sequences) // 2,
        "staleness": torch.randint(0, 9, (tokens,), generator=source),
        "entropy": torch.rand(tokens, generator=source),
        "selected": torch.randint(0, 2, (tokens,), generator=source),
        "held": torch.randint(0, 2, (tokens,), generator=source),
        "router_shift": 1 - 0.5 * torch.rand(tokens, generator=source),
        "top": [logprobs(tokens, K) - 1, logprobs(tokens, K) - 1, torch.arange(K).expand(tokens, K) == 0],
    }


ROWS = {name: row(*size) for name, size in SIZES.items()}


def arguments_of(spec: LossSpec, size: str) -> dict[str, Any]:
    """The row, without what only other losses read."""
    tensors = dict(ROWS[size])
    now, other, sampled = tensors.pop("top")
    if isinstance(spec.objective, Dppo) and spec.objective.needs_top_k:
        tensors["top_k"] = TopK(logprobs_TK=now, rollout_logprobs_TK=other, sampled_TK=sampled)
    if spec.distillation is not None:
        top = TeacherTop(logprobs_TK=now, teacher_logprobs_TK=other, sampled_TK=sampled)
        tensors["taught"] = Taught(
            logprobs_T=tensors["ref_logprobs"], top=top if spec.distillation.resolved_top_k else None
        )
    unread = {"selected": spec.top_entropy is None and spec.clip_cov is None, "held": spec.kl_cov is None}
    return {name: value for name, value in tensors.items() if not unread.get(name)}


def call(spec: LossSpec, tensors: dict[str, Any]) -> Callable[[], object]:
    """Forward, backward, and the sums of the metrics."""

    def step() -> None:
        out = policy_loss(spec, **(tensors | {"logprobs": tensors["logprobs"].clone().requires_grad_()}))
        out.loss.backward()
        assert out.sums

    return step


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", LOSSES)
def test_a_call_waits_five_times_at_most(operations: ModuleType, name: str, size: str) -> None:
    tensors = arguments_of(LOSSES[name], size)
    operations_of_call = operations.operations_of(call(LOSSES[name], tensors))
    assert 1 <= operations_of_call.synchronisations <= MOST, operations_of_call.waits


@pytest.mark.parametrize("name", LOSSES)
def test_a_longer_row_waits_no_more_often(operations: ModuleType, name: str) -> None:
    spec = LOSSES[name]
    waits = [operations.operations_of(call(spec, arguments_of(spec, size))).waits for size in SIZES]
    assert waits[0] == waits[1]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_with_layout_counts_and_tally_a_call_waits_once(
    operations: ModuleType, objective: Objective, size: str
) -> None:
    # the layout was checked when it was built, the batch is counted; what is left are ages and router shifts
    spec = spec_of(objective)
    tensors = arguments_of(spec, size)
    counts: Counts = count(tensors["mask"], tensors["sequence_ids"], tensors.pop("group_ids"))
    layout = lay_out(tensors.pop("mask"), tensors.pop("sequence_ids"))
    tensors |= {"layout": layout, "counts": counts, "tally": Tally(torch.device("cpu"))}
    operations_of_call = operations.operations_of(call(spec, tensors))
    assert operations_of_call.waits == {"tolist": 1}


NUMBERS = torch.arange(4)
MASK = NUMBERS > 1
WAITS: dict[str, Callable[[], object]] = {
    "item": lambda: NUMBERS.sum().item(),
    "int": lambda: int(NUMBERS[0]),
    "bool": lambda: bool(MASK.any()),
    "tolist": lambda: NUMBERS.tolist(),
    "cpu": lambda: NUMBERS.cpu(),
    "to cpu": lambda: NUMBERS.to("cpu"),
    "to the device cpu": lambda: NUMBERS.to(device=torch.device("cpu")),
    "numpy": lambda: NUMBERS.numpy(),
    "nonzero": lambda: NUMBERS.nonzero(),
    "a mask as an index": lambda: NUMBERS[MASK],
    "a mask that is written to": lambda: NUMBERS.clone().__setitem__(MASK, NUMBERS[:2]),
    "masked_select": lambda: NUMBERS.masked_select(MASK),
    "equal": lambda: torch.equal(NUMBERS, MASK.long()),
    "unique": lambda: NUMBERS.unique(),
    "bincount": lambda: NUMBERS.bincount(),
    "repeat_interleave": lambda: NUMBERS.repeat_interleave(NUMBERS),
    "a tensor of Python's numbers": lambda: torch.tensor([1.0, 2.0]),
    "new_tensor": lambda: NUMBERS.new_tensor([1, 2]),
}


@pytest.mark.parametrize("what", WAITS)
def test_the_counter_sees_each_way_to_wait(operations: ModuleType, what: str) -> None:
    assert operations.operations_of(WAITS[what]).synchronisations == 1


def test_the_counter_sees_no_wait_in_arithmetic(operations: ModuleType) -> None:
    def step() -> object:
        picked = torch.where(MASK, NUMBERS, 0)[NUMBERS] + NUMBERS.sort().values.to(torch.float32).long()
        return picked.clamp(min=1).sum().double(), picked[1:3], NUMBERS.to(picked)

    operations_of_call = operations.operations_of(step)
    assert (operations_of_call.synchronisations, operations_of_call.operations > 5) == (0, True)
