"""What a configuration asks of this machine: an engine over several nodes is none of `slipstream run`'s."""

from slipstream.cli.checks.machine import check_machine
from slipstream.config import parse_config

SPAN = ("rollout.nodes=2", "rollout.tensor_parallel=2")


def test_workers_of_this_machine_are_engines_on_one_node() -> None:
    (problem,) = check_machine(parse_config({}, SPAN), gpus="error")
    assert (problem.key, problem.severity) == ("rollout.nodes", "error")
    assert "one process each" in problem.reason


def test_nodes_that_are_started_by_hand_are_no_problem() -> None:
    assert check_machine(parse_config({}, (*SPAN, "rollout.workers=0")), gpus="error") == []
