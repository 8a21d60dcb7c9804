"""What the launcher of the ranks tells torchrun."""

import pytest
from slipstream.learner.torchrun import meeting, parse


def test_the_ranks_of_one_machine_need_no_address() -> None:
    own, others = parse(["4", "--config", "run.yaml", "--parent", "7"])
    assert meeting(own) == ["--standalone", "--nproc-per-node=4"]
    assert (own.parent, others) == (7, ["--config", "run.yaml"])


def test_the_ranks_of_several_machines_meet_at_the_first() -> None:
    words = "8 --nnodes 2 --node-rank 1 --master-addr learner-0.ranks --master-port 29400 --config run.yaml"
    own, others = parse(words.split())
    assert meeting(own) == [
        "--nnodes=2",
        "--node-rank=1",
        "--nproc-per-node=8",
        "--master-addr=learner-0.ranks",
        "--master-port=29400",
    ]
    assert others == ["--config", "run.yaml"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("8 --nnodes 2", "--nnodes 2 needs --master-addr, the address of node 0"),
        ("8 --nnodes 2 --node-rank 2 --master-addr a", "--node-rank 2 must be from 0 to 1"),
    ],
)
def test_a_meeting_that_cannot_come_about_is_refused(
    words: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        parse(words.split())
    assert refused.value.code == 2
    assert reason in capsys.readouterr().err
