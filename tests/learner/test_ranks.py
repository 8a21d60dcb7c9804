"""Several ranks train as one process does: equal gradients, equal checkpoints, equal ends."""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from learner.ranks_worker import CASES, compare, train_and_save
from slipstream.learner.batches.batch import TrainingSequence, make_sequences
from slipstream.learner.batches.packing import pack
from slipstream.learner.broadcast.parity_probe import take_parity_probe
from slipstream.learner.checkpoints.checkpoint import latest_checkpoint
from slipstream.learner.policy.loading import load_policy
from slipstream.learner.ranks.ranks import Alone, Heartbeat

TESTS = Path(__file__).resolve().parents[1]


def launch(ranks: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a scene of ranks_worker.py in several processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["-m", "learner.ranks_worker", *map(str, arguments)]
    path = f"{TESTS.parent / 'services'}:{TESTS}"
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def close(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor], tolerance: float) -> None:
    """Biases of keys may differ by more: the same bias for all keys changes no attention, so its gradient is
    rounding, of which Adam makes a step."""
    assert left.keys() == right.keys()
    for name, value in left.items():
        allowed = 100 * tolerance if name.endswith("k_proj.bias") else tolerance
        torch.testing.assert_close(value, right[name], rtol=allowed, atol=allowed, msg=name)


@pytest.fixture(scope="module")
def of_two(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes did with the scenes that need nothing from each other."""
    folder = tmp_path_factory.mktemp("two")
    done = launch(2, "several", tiny_dir, folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("case", CASES)
def test_two_processes_have_the_gradient_the_loss_and_the_metrics_of_one(
    of_two: Path, tiny_dir: Path, tmp_path: Path, case: str
) -> None:
    compare(Alone(), tiny_dir, tmp_path, case if case != "activation checkpointing" else "plain")
    (path,) = tmp_path.iterdir()
    one, two = torch.load(path), torch.load(of_two / f"{case}-2.pt")
    assert max(float(value.abs().max()) for value in one.values()) > 1e-3
    close(two, one, 1e-6)


def test_a_rank_without_rows_and_a_batch_without_any_keep_step(of_two: Path) -> None:
    assert (of_two / "done").read_text() == "0"


def test_what_is_not_finite_on_one_rank_changes_nothing_on_any(of_two: Path) -> None:
    assert [json.loads((of_two / f"rank-{rank}").read_text()) for rank in (0, 1)] == [[0, 1, True]] * 2


def test_a_rank_that_cannot_write_its_part_of_a_checkpoint_is_heard_by_all(of_two: Path) -> None:
    assert [(of_two / f"text-{rank}").read_text() for rank in (0, 1)] == ["the disk is full"] * 2


def test_a_checkpoint_of_two_ranks_goes_on_with_one_and_with_three(tiny_dir: Path, tmp_path: Path) -> None:
    assert launch(2, "train_and_save", tiny_dir, tmp_path, 1, 2).returncode == 0
    train_and_save(Alone(), tiny_dir, tmp_path, "3", "3")
    one = torch.load(tmp_path / "weights-3-3-1.pt")
    assert launch(3, "train_and_save", tiny_dir, tmp_path, 3, 3).returncode == 0
    close(torch.load(tmp_path / "weights-3-3-3.pt"), one, 1e-6)


def test_rank_0_leads_the_others_through_steps_snapshots_and_checkpoints(
    tiny_dir: Path, tmp_path: Path
) -> None:
    done = launch(2, "lockstep", tiny_dir, tmp_path, "no")
    assert done.returncode == 0, done.stderr
    newest = latest_checkpoint(tmp_path / "checkpoints")
    assert newest is not None
    assert newest.name == "step_00000002"
    published = torch.load(tmp_path / "snapshot.pt")
    assert all(tensor.isfinite().all() for tensor in published.values())
    alone = load_policy(tiny_dir, source=tiny_dir, device=torch.device("cpu"), dtype=torch.float32)
    alone.model.load_state_dict(published, strict=False)
    probe = take_parity_probe(alone, 32)
    assert torch.load(tmp_path / "probe.pt") == pytest.approx(probe.logprobs, abs=1e-4)


def test_a_rank_that_dies_ends_the_others_within_the_deadline(tiny_dir: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    done = launch(2, "lockstep", tiny_dir, tmp_path, "yes")
    assert done.returncode != 0
    assert time.monotonic() - began < 60
    newest = latest_checkpoint(tmp_path / "checkpoints")
    assert newest is not None
    assert newest.name == "step_00000001"


def sequences(lengths: list[int]) -> list[TrainingSequence]:
    from learner.fakes import completion, group

    made = [group(completion((7,) * length), prompt=(3,)) for length in lengths]
    from slipstream.algorithms.spec import Shaping

    return make_sequences(made, Shaping())


def test_rows_for_several_ranks_are_about_equally_long_and_lose_nothing() -> None:
    # 3 rows of at most 20 tokens would do; for two ranks there are 4, of 15, 13, 13 and 13
    made = sequences([14, 12, 9, 8, 3, 2])
    rows = pack(made, max_tokens=20, ranks=2)
    lengths = [sum(s.length for s in row) for row in rows]
    assert len(rows) == 4
    assert sorted(s.place for row in rows for s in row) == list(range(6))
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 3


def test_more_ranks_than_sequences_leave_rows_empty() -> None:
    assert [len(row) for row in pack(sequences([5]), max_tokens=20, ranks=3)] == [1, 0, 0]


def test_even_rows_that_would_overflow_get_more_of_them() -> None:
    # four of 11 fit no two to a row of 20; each has its own
    rows = pack(sequences([10, 10, 10, 10]), max_tokens=20, ranks=2)
    assert [len(row) for row in rows] == [1, 1, 1, 1]


def test_rows_are_not_filled_above_enough_tokens_and_a_longer_sequence_has_its_own_row() -> None:
    # with a prompt of 1 each: 31, 11, 9, 8, 8 tokens; rows of 20 are enough, 40 are the most
    rows = pack(sequences([30, 10, 8, 7, 7]), max_tokens=40, enough=20)
    assert [[s.length for s in row] for row in rows] == [[31], [11, 9], [8, 8]]
    assert [len(row) for row in pack(sequences([30, 10, 8, 7, 7]), max_tokens=40)] == [2, 3]


def test_a_leader_that_is_silent_for_too_long_is_given_up() -> None:
    store = torch.distributed.HashStore()
    leader, other = (Heartbeat(store, timeout_seconds=0.2) for _ in range(2))
    assert other.heard()  # it has only begun to listen
    time.sleep(0.3)
    leader.beat()
    assert other.heard()
    time.sleep(0.3)
    assert not other.heard()
    leader.beat()
    assert other.heard()
