"""A writer killed, a full disk, a missing folder: the last checkpoint stays, and the run goes on."""

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from learner.fakes import config_with, said, save
from learner.learner_session import configured, session
from learner.mortal import Script
from learner.worker import until
from slipstream.learner.checkpoints.checkpoint import CheckpointWriter, State, latest_checkpoint, read_state
from slipstream.learner.policy.model import Policy
from slipstream.learner.ranks.ranks import Alone
from slipstream.learner.training.state import collect
from slipstream.learner.training.step import TrainingStep

TESTS = Path(__file__).resolve().parents[1]
NOT_WRITTEN = "checkpoint not written; the last one stays"


def test_a_writer_that_is_killed_in_the_middle_leaves_the_last_checkpoint_whole(
    policy: Policy, tiny_dir: Path, tmp_path: Path
) -> None:
    program = [sys.executable, "-m", "learner.killed_writer", str(tiny_dir), str(tmp_path), "3"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{TESTS.parent / 'services'}:{TESTS}"}
    ended = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout.splitlines()[-1])
    assert [(kill["signal"], kill["whole"]) for kill in report] == [(9, True)] * 3
    assert all(kill["newest"] >= kill["first"] for kill in report)
    assert any(kill["partial"] for kill in report)
    last = report[-1]["newest"]
    save(tmp_path, TrainingStep(policy, config_with()), State(version=last + 1, model_fingerprint="f"))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names[-1] == f"step_{last + 1:08d}"
    assert not [name for name in names if name.startswith(".partial")]


def test_a_folder_that_is_away_when_the_checkpoint_is_to_get_its_name_is_an_os_error(
    policy: Policy, tmp_path: Path
) -> None:
    root, training = tmp_path / "checkpoints", TrainingStep(policy, config_with())
    first = save(root, training, State(version=1, model_fingerprint="f"))
    writer = CheckpointWriter(root, Alone())
    writer.prepare(State(version=2, model_fingerprint="f"), policy)
    writer.begin(2, collect(training))
    writer.wait()
    root.rename(tmp_path / "away")
    with pytest.raises(OSError, match="partial-step_00000002"):
        writer.settle()
    (tmp_path / "away").rename(root)
    assert latest_checkpoint(root) == first
    third = save(root, training, State(version=3, model_fingerprint="f"))
    assert sorted(root.iterdir()) == [first, third]


class FullDisk:
    """Writes of more than 200 kB a file fail: all but the tensors still fits."""

    def __init__(self, root: Path) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def begin(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, self._before[1]))

    def end(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)


class FolderAway:
    """In the place of the folder with checkpoints there is one that nothing can be written to."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._away = root.with_name("away")

    def begin(self) -> None:
        self._root.rename(self._away)
        self._root.write_text("nothing is mounted here")

    def end(self) -> None:
        if self._away.exists():
            self._root.unlink()
            self._away.rename(self._root)


def content(checkpoint: Path) -> dict[str, bytes]:
    """Every file of a checkpoint."""
    return {str(path.relative_to(checkpoint)): path.read_bytes() for path in checkpoint.rglob("*.*")}


def shown(script: Script, name: str) -> float | None:
    """A metric of the learner."""
    return script.metrics.registry.get_sample_value(f"slipstream_{name}")


@pytest.mark.parametrize("make_trouble", [FullDisk, FolderAway])
def test_a_checkpoint_that_cannot_be_written_keeps_the_run_going_until_the_next_can(
    tiny_dir: Path, redis_url: str, tmp_path: Path, make_trouble: Callable[[Path], FullDisk | FolderAway]
) -> None:
    root = tmp_path / "run" / "checkpoints"
    trouble, before = make_trouble(root), {}

    async def begin(script: Script) -> None:
        await script.events.wait_for("confirm_checkpoint 2")
        before.update(content(root / "step_00000002"))
        trouble.begin()

    async def end(script: Script) -> None:
        await until(lambda: NOT_WRITTEN in said(script.log))
        trouble.end()
        assert (shown(script, "checkpoint_failures_total"), shown(script, "checkpoint_version")) == (1, 2)
        assert [path.name for path in root.iterdir()] == ["step_00000002"]

    async def look(script: Script) -> None:
        assert (shown(script, "checkpoint_failures_total"), shown(script, "checkpoint_version")) == (0, 0)

    script = Script(at={"after announce 1": look, "after announce 3": begin, "after announce 5": end})
    try:
        ended = session(configured(tiny_dir, tmp_path / "run", preset="grpo"), redis_url, script)
    finally:
        trouble.end()
    assert (ended.version, ended.kept) == (6, 0)
    lines = [line for line in said(script.log).splitlines() if NOT_WRITTEN in line]
    assert len(lines) == 1
    assert "step=4 " in lines[0]
    assert [event for event in script.events if event.startswith("confirm")] == [
        "confirm_checkpoint 2",
        "confirm_checkpoint 6",
    ]
    assert content(root / "step_00000002") == before
    assert (shown(script, "checkpoint_failures_total"), shown(script, "checkpoint_version")) == (1, 6)
    newest = latest_checkpoint(root)
    assert newest is not None
    assert read_state(newest).version == 6
