"""The rank of a node of an engine, from its arguments, and arguments that are errors."""

import pytest
from slipstream.rollout import node
from slipstream.rollout.node_rank import NodeRank, check_node_rank, parse_node_rank

SECOND = NodeRank(rank=1, master_addr="head", master_port=29600)


def test_the_node_rank_is_removed_from_the_arguments() -> None:
    arguments = ["--config", "a", "--node-rank", "1", "--set", "b=1", "--master-addr=head", "--name=c"]
    assert parse_node_rank("rollout", arguments) == (SECOND, ["--config", "a", "--set", "b=1", "--name=c"])


def test_without_a_node_rank_the_arguments_are_unchanged() -> None:
    assert parse_node_rank("rollout", ["--config", "a"]) == (None, ["--config", "a"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--node-rank=1"],
        ["--master-addr=head"],
        ["--node-rank=-1", "--master-addr=head"],
        ["--node-rank=$(LWS_WORKER_INDEX)", "--master-addr=head"],
        ["--node-rank=1", "--master-addr=head", "--master-port=65536"],
    ],
)
def test_impossible_arguments_are_a_usage_error(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        parse_node_rank("rollout", arguments)
    assert raised.value.code == 2


@pytest.mark.parametrize("arguments", [["--config=a"], ["--config=a", "--node-rank=0", "--master-addr=head"]])
def test_the_head_is_not_started_as_a_further_node(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert node.run(arguments) == 2
    assert "--node-rank K from 1 on" in capsys.readouterr().err


def test_the_node_rank_must_be_below_the_number_of_nodes() -> None:
    check_node_rank(None, nodes=1)
    check_node_rank(SECOND, nodes=2)
    with pytest.raises(ValueError, match=r"rollout.nodes is 2, and this process has no node rank"):
        check_node_rank(None, nodes=2)
    with pytest.raises(ValueError, match="ranks go from 0 to 0"):
        check_node_rank(SECOND, nodes=1)
