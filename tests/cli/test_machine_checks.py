"""What a configuration asks of this machine: an engine over several nodes is none of `slipstream run`'s."""

from pathlib import Path

import pytest
from slipstream.cli.checks.machine import check_machine
from slipstream.config import parse_config

SPAN = ("rollout.nodes=2", "rollout.tensor_parallel=2")


def test_workers_of_this_machine_are_engines_on_one_node() -> None:
    (problem,) = check_machine(parse_config({}, SPAN), gpus="error")
    assert (problem.key, problem.severity) == ("rollout.nodes", "error")
    assert "one process each" in problem.reason


def test_nodes_that_are_started_by_hand_are_no_problem() -> None:
    assert check_machine(parse_config({}, (*SPAN, "rollout.workers=0")), gpus="error") == []


@pytest.mark.parametrize("key", ["runs_dir", "run_dir", "warmup.cache_dir"])
def test_a_folder_that_cannot_be_written_to_is_named_and_nothing_is_left(tmp_path: Path, key: str) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "runs"
    (problem,) = check_machine(parse_config({}, ("warmup.steps=1", f"{key}={folder}")), gpus="note")
    assert (problem.key, problem.severity) == (key, "error")
    assert problem.reason == f"{folder} cannot be written to: {tmp_path / 'file'}: Not a directory"
    assert sorted(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_folder_that_is_yet_to_be_made_is_no_problem(tmp_path: Path) -> None:
    assert check_machine(parse_config({}, (f"runs_dir={tmp_path / 'a' / 'b'}",)), gpus="note") == []
    assert list(tmp_path.iterdir()) == []
