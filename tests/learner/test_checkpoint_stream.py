"""A checkpoint is written from the tensors in place: no second copy, and no value of a later step."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
import torch
from learner.fakes import config_with, contrast, save
from safetensors.torch import load_file
from slipstream.learner.broadcast.snapshot import Snapshot
from slipstream.learner.checkpoints.checkpoint import CheckpointWriter, State, load_tensors, read_state
from slipstream.learner.checkpoints.shards import LiveShards, shards_of
from slipstream.learner.checkpoints.stream import Form, file_order, pieces_of, write_file
from slipstream.learner.lockstep import Lockstep
from slipstream.learner.policy.model import Policy
from slipstream.learner.ranks.ranks import Alone
from slipstream.learner.training.state import collect
from slipstream.learner.training.step import TrainingStep

TESTS = Path(__file__).resolve().parents[1]
MEGABYTES = 256


def tensors() -> dict[str, torch.Tensor]:
    """Several dtypes and shapes, a scalar and an empty one among them."""
    return {
        "bytes": torch.arange(7, dtype=torch.uint8),
        "scalar": torch.tensor(3.0),
        "flags": torch.tensor([True, False, True]),
        "half": torch.randn(3, 5).to(torch.bfloat16),
        "transposed": torch.randn(4, 6).T,
        "empty": torch.zeros(0, 4),
        "long": torch.arange(9),
    }


def test_the_file_is_what_safetensors_itself_reads(tmp_path: Path) -> None:
    written = tensors()
    forms = file_order({n: Form(dtype=t.dtype, shape=tuple(t.shape)) for n, t in written.items()})
    pieces = (piece for name in forms for piece in pieces_of(written[name]))
    write_file(tmp_path / "a.safetensors", forms, pieces, metadata={"format": "pt"})
    stored = load_file(tmp_path / "a.safetensors")
    assert stored.keys() == written.keys()
    assert all(torch.equal(stored[name], tensor) for name, tensor in written.items())


def test_the_file_holds_the_values_from_before_the_tensors_were_copied(tmp_path: Path) -> None:
    written = {"a": torch.full((5,), 1.0), "b": torch.full((5,), 2.0), "c": torch.full((5,), 3.0)}
    live, middle, changed = LiveShards(shards_of(written, rank=0)), Event(), Event()
    pieces = live._pieces

    def slow() -> Iterator[torch.Tensor]:
        for number, piece in enumerate(pieces()):
            yield piece
            if number == 0:
                middle.set()
                assert changed.wait(20)

    live._pieces = slow  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as thread:
        writing = thread.submit(live.write, tmp_path / "a.safetensors")
        assert middle.wait(20)
        live.copy_unwritten()
        for tensor in written.values():
            tensor.zero_()
        changed.set()
        writing.result()
    tensors = load_file(tmp_path / "a.safetensors")
    assert [float(tensors[name][0]) for name in "abc"] == [1.0, 2.0, 3.0]


def test_a_step_does_not_change_a_checkpoint_that_is_being_written(policy: Policy, tmp_path: Path) -> None:
    """The lockstep calls `copy_unwritten` before the first change, and only then."""
    training = TrainingStep(policy, config_with())
    writer = CheckpointWriter(tmp_path, Alone())
    done: list[str] = []
    copy_unwritten = writer.copy_unwritten

    def noted() -> None:
        done.append("left with a gradient" if any(p.grad is not None for p in parameters) else "left early")
        copy_unwritten()

    writer.copy_unwritten = noted  # type: ignore[method-assign]
    parameters = list(policy.model.parameters())
    lockstep = Lockstep(Alone(), training, Snapshot(policy, Alone()), writer)

    async def run() -> dict[str, torch.Tensor]:
        await lockstep.begin_checkpoint(State(version=1, model_fingerprint="f"))
        before = {name: tensor.clone() for name, tensor in collect(training).items()}
        await lockstep.train([contrast("a")], version=1, stopped=lambda: False, unvaried_share=None)
        await lockstep.settle_checkpoint()
        return before

    before = asyncio.run(run())
    assert done == ["left with a gradient"]
    after = collect(training)
    assert not all(torch.equal(after[name], tensor) for name, tensor in before.items())
    written = {name: torch.empty_like(tensor) for name, tensor in before.items()}
    load_tensors(tmp_path / "step_00000001", written)
    assert all(torch.equal(written[name], tensor) for name, tensor in before.items())


def test_the_state_of_a_checkpoint_has_the_bytes_of_its_tensors(policy: Policy, tmp_path: Path) -> None:
    training = TrainingStep(policy, config_with())
    lockstep = Lockstep(Alone(), training, None, CheckpointWriter(tmp_path, Alone()))  # type: ignore[arg-type]

    async def run() -> None:
        await lockstep.begin_checkpoint(State(version=1, model_fingerprint="f"))
        await lockstep.settle_checkpoint()

    asyncio.run(run())
    size = sum(path.stat().st_size for path in (tmp_path / "step_00000001" / "tensors").iterdir())
    stated_bytes = read_state(tmp_path / "step_00000001").bytes
    assert stated_bytes is not None
    assert 0 < size - stated_bytes < 0.2 * size  # the header is the rest


def test_a_checkpoint_without_its_size_is_still_read(policy: Policy, tmp_path: Path) -> None:
    saved = save(tmp_path, TrainingStep(policy, config_with()), State(version=1, model_fingerprint="f"))
    state = json.loads((saved / "state.json").read_text())
    del state["bytes"]
    (saved / "state.json").write_text(json.dumps(state))
    assert read_state(saved).bytes is None


@pytest.mark.parametrize(("changing", "share"), [((), 0.25), (("changing",), 1.25)])
def test_a_checkpoint_takes_no_second_copy_unless_training_changes_the_tensors(
    tmp_path: Path, changing: tuple[str, ...], share: float
) -> None:
    program = [sys.executable, "-m", "learner.checkpoint_memory", str(MEGABYTES), str(tmp_path), *changing]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{TESTS.parent / 'services'}:{TESTS}"}
    ended = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout.splitlines()[-1])
    assert report["grown_by"] < share * MEGABYTES
