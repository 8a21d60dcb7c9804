"""In synchronous mode an interrupted run equals the uninterrupted one, bit for bit: weights, moments, rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from learner.circle import Ended, Script, configured, rows, session, stored
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
    known: dict[str, tuple[Ended, Path]] = {}

    def run(algorithm: str) -> tuple[Ended, Path]:
        if algorithm not in known:
            run_dir = tmp_path_factory.mktemp("whole") / f"whole-{algorithm}"
            known[algorithm] = session(configure(algorithm, run_dir), redis_server.url), run_dir
        return known[algorithm]

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
        for found in rows(run_dir)[place]:
            assert found == row, place


def test_the_circle_turns(uninterrupted: Whole) -> None:
    for algorithm in ALGORITHMS:
        ended, run_dir = uninterrupted(algorithm)
        assert ended.ledger.trained == 24
        steps = [rows(run_dir)[f"step {step}"][0] for step in range(1, 7)]
        assert all(row["staleness_max"] == 0 and row["gradient_norm"] > 0 for row in steps)
        assert ("zero_variance" in ended.ledger.filtered) == (algorithm == "memory")


async def stop(script: Script) -> None:
    script.stop.set()


INTERRUPTIONS: dict[str, tuple[Callable[[], Script], int]] = {
    "stopped between two steps": (lambda: Script(after={"announce 3": stop}), 3),
    "stopped when the next batch has come": (lambda: Script(after={"sample 3": stop}), 3),
    "killed before a step is acknowledged": (lambda: Script(kill_before="ack 4", durable=(2,)), 2),
    "killed after a step is acknowledged": (lambda: Script(kill_after="ack 4", durable=(2,)), 2),
    "killed in the middle of a batch": (lambda: Script(kill_before="insert 14", durable=(2,)), 2),
    "killed before a version is announced": (lambda: Script(kill_before="announce 3", durable=(2,)), 2),
    "killed before a checkpoint is confirmed": (lambda: Script(kill_before="confirm_checkpoint 2"), 2),
}
"""What happens, and the step from which the next session goes on."""


CASES = [
    *(("memory", interruption, False) for interruption in INTERRUPTIONS),
    *(("memory", interruption, True) for interruption in list(INTERRUPTIONS)[::2]),
    ("plain", "killed before a step is acknowledged", False),
    ("plain", "killed in the middle of a batch", True),
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
    make_script, version = INTERRUPTIONS[interruption]
    assert session(config, redis_url, make_script()).version < 6
    if lost:
        Redis.from_url(redis_url).flushall()
    ended = session(config, redis_url)
    assert ended.started_at == version
    assert ended.ledger.trained == (expected.ledger.trained - 4 * version if lost else expected.ledger.trained)
    same(tmp_path / "run", whole_dir)
