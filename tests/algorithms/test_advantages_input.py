"""group_advantages: the errors for wrong arguments, and the smallest valid input."""

import math
from typing import Any

import pytest
import torch
from slipstream.algorithms import group_advantages
from slipstream.algorithms.spec import ADVANTAGES, Grpo
from torch import Tensor

NAN = math.nan


def test_a_group_without_a_second_member_is_refused() -> None:
    with pytest.raises(ValueError, match="group_ids: got a single completion in group 9"):
        group_advantages(Grpo(), torch.tensor([1.0, 0, 1]), torch.tensor([3, 3, 9]))


@pytest.mark.parametrize(
    "kind", [kind for kind in ADVANTAGES if kind not in ("grpo", "ema", "optimal_token", "gae")]
)
def test_every_estimator_within_groups_refuses_a_group_of_one(kind: str) -> None:
    with pytest.raises(ValueError, match="group_ids: got a single completion in group 1"):
        group_advantages({"kind": kind}, torch.tensor([1.0, 0, 1]), torch.tensor([0, 0, 1]))


@pytest.mark.parametrize(
    ("spec", "argument"),
    [
        ({"kind": "opo"}, "lengths"),
        ({"kind": "reinforce_pp", "weighting": "token"}, "lengths"),
        ({"kind": "ema"}, "baselines"),
        ({"kind": "mixed", "lam": 0.5}, "baselines"),
        ({"kind": "mixed", "prior": 1.0}, "baselines"),
    ],
)
def test_an_estimator_names_the_argument_that_it_lacks(spec: dict[str, Any], argument: str) -> None:
    with pytest.raises(ValueError, match=f"{argument}: got None, {spec['kind']}"):
        group_advantages(spec, torch.tensor([1.0, 0.0]), torch.tensor([0, 0]))


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("weights", torch.ones(2), "weights: got shape"),
        ("weights", torch.tensor([NAN]), "weights: got .*needs finite"),
        ("lengths", torch.ones(3), "lengths: got shape"),
        ("lengths", torch.tensor([1, -1]), "lengths: got a negative"),
        ("baselines", torch.ones(2, 1), "baselines: got shape"),
        ("baselines", torch.tensor([1.0, NAN]), "baselines: got a value that is not finite"),
    ],
)
def test_a_malformed_argument_is_named(argument: str, value: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        group_advantages(
            {"kind": "ema"},
            torch.tensor([1.0, 0.0]),
            torch.tensor([0, 0]),
            **{"baselines": torch.zeros(2), argument: value},
        )


def test_a_withheld_completion_needs_no_baseline() -> None:
    baselines = torch.tensor([0.25, NAN])
    result = group_advantages(
        {"kind": "ema"}, torch.tensor([1.0, NAN]), torch.tensor([0, 0]), baselines=baselines
    )
    assert result.tolist() == [0.75, 0.0]


@pytest.mark.parametrize(
    ("rewards", "groups", "message"),
    [
        (torch.zeros(3), torch.zeros(2, dtype=torch.long), "group_ids: got shape"),
        (torch.zeros(2), torch.zeros(2), "group_ids: got torch.float32"),
        (torch.zeros(1, 1, 1), torch.zeros(1, dtype=torch.long), "rewards: got shape"),
        (torch.zeros(2, 0), torch.zeros(2, dtype=torch.long), "rewards: got shape"),
        (torch.tensor([0.0, math.inf]), torch.zeros(2, dtype=torch.long), "infinite"),
    ],
)
def test_malformed_input_is_refused(rewards: Tensor, groups: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        group_advantages(Grpo(), rewards, groups)


@pytest.mark.parametrize("kind", [kind for kind in ADVANTAGES if kind not in ("optimal_token", "gae")])
def test_an_empty_batch_has_no_advantages_and_the_result_is_float32(kind: str) -> None:
    empty = torch.zeros(0, dtype=torch.float64)
    result = group_advantages({"kind": kind}, empty, empty.long(), lengths=empty, baselines=empty)
    assert result.shape == (0,)
    assert result.dtype == torch.float32


def test_a_list_in_place_of_a_tensor_is_named() -> None:
    rewards, ids = torch.tensor([1.0, 0.0]), torch.tensor([0, 0])
    with pytest.raises(ValueError, match=r"rewards: got list, needs a torch\.Tensor"):
        group_advantages({"kind": "grpo"}, [1.0, 0.0], ids)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"group_ids: got list, needs a torch\.Tensor"):
        group_advantages({"kind": "grpo"}, rewards, [0, 0])  # type: ignore[arg-type]
