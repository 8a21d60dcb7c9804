"""An interrupted synchronous run equals the uninterrupted run bit for bit: weights, optimizer state, rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from learner.learner_session import Ended, configured, rows, session, stored
from learner.mortal import Happening, Script, kill, kill_once_2_is_durable, stop
from redis import Redis
from slipstream.config import RunConfig
from slipstream.replay.redis_server import RedisServer

ALGORITHMS: dict[str, dict[str, Any]] = {
    "plain": {"preset": "grpo"},
    "memory": {
        "preset": "cispo",
        "advantage": {"kind": "ema"},
        "kl": {"coefficient": 0.05},
        "reference": {"kind": "ema", "decay": 0.9},
        "entropy": {"coefficient": 0.0, "target": 9.0},
        "shaping": {"dynamic_sampling": {}, "collapse_alarm": {"window": 2}},
    },
}
"""One that learns from the batch alone, and one that carries along whatever can be."""


Configure = Callable[[str, Path], RunConfig]


@pytest.fixture(scope="module")
def configure(tiny_dir: Path) -> Configure:
    return lambda algorithm, run_dir: configured(tiny_dir, run_dir, **ALGORITHMS[algorithm])


Whole = Callable[[str], tuple[Ended, Path]]


@pytest.fixture(scope="module")
def uninterrupted(
    redis_server: RedisServer, configure: Configure, tmp_path_factory: pytest.TempPathFactory
) -> Whole:
    """The run of an algorithm that nothing happens to, made once."""
    runs: dict[str, tuple[Ended, Path]] = {}

    def run(algorithm: str) -> tuple[Ended, Path]:
        if algorithm not in runs:
            run_dir = tmp_path_factory.mktemp("whole") / f"whole-{algorithm}"
            runs[algorithm] = session(configure(algorithm, run_dir), redis_server.url), run_dir
        return runs[algorithm]

    return run


def same(run_dir: Path, whole_dir: Path) -> None:
    """What two runs leave is equal, to the last bit; whatever an interrupted one did twice, too."""
    state, tensors = stored(run_dir)
    expected_state, expected = stored(whole_dir)
    assert state["version"] == 6
    assert tensors.keys() == expected.keys()
    assert not [name for name, tensor in tensors.items() if not torch.equal(tensor, expected[name])]
    assert state == expected_state
    for place, (row,) in rows(whole_dir).items():
        for each_row in rows(run_dir)[place]:
            assert each_row == row, place


def test_a_run_trains_and_publishes_all_steps(uninterrupted: Whole) -> None:
    for algorithm in ALGORITHMS:
        ended, run_dir = uninterrupted(algorithm)
        assert ended.ledger.trained == 24
        steps = [rows(run_dir)[f"step {step}"][0] for step in range(1, 7)]
        assert all(row["staleness_max"] == 0 and row["gradient_norm"] > 0 for row in steps)
        assert ("zero_variance" in ended.ledger.filtered) == (algorithm == "memory")


INTERRUPTIONS: dict[str, tuple[str, Happening, set[int]]] = {
    "stopped between two steps": ("after announce 3", stop, {3}),
    "stopped when the next batch has come": ("after sample 3", stop, {3}),
    "stopped in a step": ("before sample 4", stop, {3, 4}),  # whether it is given up is a matter of luck
    "killed before a step is acknowledged": ("before ack 4", kill_once_2_is_durable, {2}),
    "killed after a step is acknowledged": ("after ack 4", kill_once_2_is_durable, {2}),
    "killed in the middle of a batch": ("before insert 14", kill_once_2_is_durable, {2}),
    "killed before a version is announced": ("before announce 3", kill_once_2_is_durable, {2}),
    "killed before a checkpoint is confirmed": ("before confirm_checkpoint 2", kill, {2}),
    "killed before the first checkpoint": ("before ack 2", kill, {0}),
}
"""What happens and when, and the version from which the next session goes on."""


CASES = [
    *(("memory", interruption, False) for interruption in INTERRUPTIONS),
    *(
        ("memory", happens, True)
        for happens in ("stopped between two steps", "killed in the middle of a batch")
    ),
    ("plain", "killed before a step is acknowledged", False),
]


@pytest.mark.parametrize(
    ("algorithm", "interruption", "lost"),
    CASES,
    ids=[f"{algorithm} {what}{', Redis lost' if lost else ''}" for algorithm, what, lost in CASES],
)
def test_an_interrupted_run_equals_the_uninterrupted_one(
    configure: Configure,
    uninterrupted: Whole,
    redis_url: str,
    tmp_path: Path,
    algorithm: str,
    interruption: str,
    lost: bool,
) -> None:
    expected, whole_dir = uninterrupted(algorithm)
    config = configure(algorithm, tmp_path / "run")
    place, happening, versions = INTERRUPTIONS[interruption]
    assert session(config, redis_url, Script(at={place: happening})).version < 6
    if lost:
        Redis.from_url(redis_url).flushall()
    ended = session(config, redis_url)
    assert ended.started_at in versions
    trained_before = 4 * ended.started_at if lost else 0
    assert ended.ledger.trained == expected.ledger.trained - trained_before
    same(tmp_path / "run", whole_dir)


def test_a_run_that_could_not_write_its_last_checkpoint_goes_on_from_the_one_before_as_if_nothing_had_been(
    configure: Configure, uninterrupted: Whole, redis_url: str, tmp_path: Path
) -> None:
    config, checkpoints = configure("memory", tmp_path / "run"), tmp_path / "run" / "checkpoints"
    _, whole_dir = uninterrupted("memory")

    async def lose_the_folder(script: Script) -> None:
        await script.events.wait_for("confirm_checkpoint 2")
        checkpoints.rename(tmp_path / "away")
        checkpoints.write_text("nothing is mounted here")

    session(config, redis_url, Script(at={"after announce 3": lose_the_folder, "before ack 6": kill}))
    checkpoints.unlink()
    (tmp_path / "away").rename(checkpoints)
    assert session(config, redis_url).started_at == 2
    same(tmp_path / "run", whole_dir)
