"""Checks of a configuration against this machine; `slipstream run` starts no engine over several nodes."""

from pathlib import Path

import pytest
from slipstream.cli.checks.machine import check_machine
from slipstream.config import parse_config

SPAN = ("rollout.nodes=2", "rollout.tensor_parallel=2")


def test_a_run_on_this_machine_needs_engines_on_one_node() -> None:
    (problem,) = check_machine(parse_config({}, SPAN), gpus="error")
    assert (problem.key, problem.severity) == ("rollout.nodes", "error")
    assert "one process each" in problem.reason


def test_nodes_that_are_started_by_hand_are_no_problem() -> None:
    assert check_machine(parse_config({}, (*SPAN, "rollout.workers=0")), gpus="error") == []


@pytest.mark.parametrize("key", ["runs_dir", "run_dir", "warmup.cache_dir"])
def test_the_error_names_a_folder_that_is_not_writable_and_the_check_leaves_no_file(
    tmp_path: Path, key: str
) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "runs"
    (problem,) = check_machine(parse_config({}, ("warmup.steps=1", f"{key}={folder}")), gpus="note")
    assert (problem.key, problem.severity) == (key, "error")
    assert problem.reason == f"{folder} cannot be written to: {tmp_path / 'file'}: Not a directory"
    assert sorted(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_folder_that_does_not_exist_yet_is_no_problem(tmp_path: Path) -> None:
    assert check_machine(parse_config({}, (f"runs_dir={tmp_path / 'a' / 'b'}",)), gpus="note") == []
    assert list(tmp_path.iterdir()) == []
