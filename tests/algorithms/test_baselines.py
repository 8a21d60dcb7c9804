"""Running baselines: numbers worked by hand, before and after a batch, and saved in a checkpoint."""

import json
import math
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from slipstream.algorithms import group_advantages
from slipstream.algorithms.baselines import RunningBaselines

NAN = math.nan


def test_the_average_moves_towards_the_mean_of_the_batch() -> None:
    # a: 3/4 * 4 + 1/4 * mean(0, 2) = 3.25; b is not in the batch; c starts at its first mean
    old = RunningBaselines(averages={"a": 4.0, "b": 7.0})
    new = old.after(["a", "c", "a"], [0.0, 5.0, 2.0], 0.75)
    assert dict(new.averages) == {"a": 3.25, "b": 7.0, "c": 5.0}
    assert dict(old.averages) == {"a": 4.0, "b": 7.0}


def test_a_known_key_has_its_average_before_the_batch_and_a_new_one_its_own_mean() -> None:
    baselines = RunningBaselines(averages={"a": 4.0})
    assert baselines.of(["a", "b", "b", "a"], [0.0, 1.0, 2.0, 100.0]) == [4.0, 1.5, 1.5, 4.0]


def test_withheld_rewards_move_nothing_and_make_no_key() -> None:
    baselines = RunningBaselines(averages={"a": 4.0})
    keys, rewards = ["a", "b", "c", "c"], [NAN, NAN, 2.0, NAN]
    assert baselines.of(keys, rewards) == pytest.approx([4.0, NAN, 2.0, 2.0], nan_ok=True)
    assert dict(baselines.after(keys, rewards, 0.5).averages) == {"a": 4.0, "c": 2.0}


def test_the_first_batch_is_centred_and_the_second_is_judged_by_the_first() -> None:
    baselines, keys, ids = RunningBaselines(), ["sums", "sums"], torch.tensor([0, 1])
    seen = []
    for rewards in ([3.0, 1.0], [4.0, 4.0]):
        baselines_B = torch.tensor(baselines.of(keys, rewards), dtype=torch.float64)
        advantages = group_advantages({"kind": "ema"}, torch.tensor(rewards), ids, baselines=baselines_B)
        seen.append(advantages.tolist())
        baselines = baselines.after(keys, rewards, 0.5)
    assert seen == [[1.0, -1.0], [2.0, 2.0]]
    assert baselines.to_dict() == {"sums": 3.0}


@given(st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False)))
def test_a_checkpoint_brings_back_the_same_state(averages: dict[str, float]) -> None:
    state = RunningBaselines(averages=averages)
    assert RunningBaselines(averages=json.loads(json.dumps(state.to_dict()))) == state


@given(st.floats(-9, 9), st.lists(st.floats(-9, 9), min_size=1), st.floats(0.01, 0.99))
def test_the_new_average_lies_between_the_old_one_and_the_mean(
    old: float, rewards: list[float], decay: float
) -> None:
    mean = math.fsum(rewards) / len(rewards)
    new = RunningBaselines(averages={"a": old}).after(["a"] * len(rewards), rewards, decay).averages["a"]
    assert new == pytest.approx(decay * old + (1 - decay) * mean, abs=1e-12)
    assert min(old, mean) - 1e-12 <= new <= max(old, mean) + 1e-12


def test_the_state_cannot_be_changed_from_outside() -> None:
    source = {"a": 1.0}
    baselines = RunningBaselines(averages=source)
    source["a"] = 2.0
    assert baselines.averages["a"] == 1.0
    with pytest.raises(TypeError):
        baselines.averages["a"] = 3.0  # type: ignore[index]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RunningBaselines(averages={"a": NAN}), "averages: got nan for 'a'"),
        (lambda: RunningBaselines(averages={"a": "1"}), "averages: got '1' for 'a'"),  # type: ignore[dict-item]
        (lambda: RunningBaselines(averages={1: 1.0}), "averages: got the key 1"),  # type: ignore[dict-item]
        (lambda: RunningBaselines().of(["a"], []), "keys: got 1, needs 0"),
        (lambda: RunningBaselines().of(["a"], [math.inf]), "rewards: got an infinite reward"),
        (lambda: RunningBaselines().after(["a"], [1.0], 1.0), "decay: got 1"),
        (lambda: RunningBaselines().after(["a"], [1.0], 0.0), "decay: got 0"),
    ],
)
def test_malformed_input_is_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_the_baselines_need_no_torch() -> None:
    program = "import slipstream.algorithms.baselines, sys; assert 'torch' not in sys.modules"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=environment)
