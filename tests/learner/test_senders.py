"""Every rank of a learner sends its own part of the weights, over real gRPC and real gloo groups."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]


def launch(ranks: int, *arguments: object) -> None:
    """Run a scene of senders_worker.py in several processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["-m", "learner.senders_worker", *map(str, arguments)]
    path = f"{TESTS.parent / 'services'}:{TESTS}"
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "PYTHONFAULTHANDLER": "1",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert Path(str(arguments[-1])).read_text() == "passed"


@pytest.mark.parametrize("ranks", [2, 3])
def test_after_every_update_rollouts_have_the_weights_of_all_ranks(
    ranks: int, tiny_dir: Path, tmp_path: Path
) -> None:
    launch(ranks, "sequence", tiny_dir, tmp_path / "out")


def test_every_rank_sends_its_own_experts(moe_dir: Path, tmp_path: Path) -> None:
    launch(3, "sequence", moe_dir, tmp_path / "out")


def test_every_rank_encrypts_its_buckets(tiny_dir: Path, tmp_path: Path) -> None:
    launch(2, "encrypted", tiny_dir, tmp_path / "out")


def test_what_is_sent_are_the_weights_before_an_update_that_waited_for_the_copy(
    tiny_dir: Path, tmp_path: Path
) -> None:
    launch(2, "beside", tiny_dir, tmp_path / "out")


@pytest.mark.parametrize("where", ["form", "close", "send"])
def test_a_rank_that_stops_ends_the_publication_with_its_name(
    where: str, tiny_dir: Path, tmp_path: Path
) -> None:
    launch(2, f"stopped in {where}", tiny_dir, tmp_path / "out")


@pytest.mark.parametrize("where", ["form", "send"])
def test_an_error_of_a_rank_ends_the_learner_and_drops_no_rollout(
    where: str, tiny_dir: Path, tmp_path: Path
) -> None:
    launch(2, f"broken {where}", tiny_dir, tmp_path / "out")
