"""The arguments that the launcher of the ranks gives torchrun."""

import json
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from slipstream.learner.torchrun import parse, rendezvous_arguments

LISTENING = """
import json
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 0:
    agent = psutil.Process().parent()
    rows = set()
    for process in (agent, *agent.children(recursive=True)):
        for each in process.net_connections(kind="inet"):
            if each.status == psutil.CONN_LISTEN:
                wild = each.laddr.ip in ("::", "0.0.0.0")
                rows.add(("store" if wild else "gloo", each.laddr.port))
    print(json.dumps(sorted(rows)), flush=True)
dist.barrier()
"""
"""A rank that says who listens: torch's store is what listens on all addresses."""


def test_the_ranks_of_one_machine_need_no_address() -> None:
    own, others = parse(["4", "--config", "run.yaml", "--parent", "7"])
    assert rendezvous_arguments(own) == ["--standalone", "--nproc-per-node=4"]
    assert (own.parent, others) == (7, ["--config", "run.yaml"])


def test_the_ranks_of_one_machine_keep_to_the_port_that_they_are_given() -> None:
    own, _ = parse(["4", "--master-port", "29400"])
    assert rendezvous_arguments(own) == [
        "--nnodes=1",
        "--node-rank=0",
        "--nproc-per-node=4",
        "--master-addr=127.0.0.1",
        "--master-port=29400",
    ]


def test_with_a_port_nothing_of_the_ranks_listens_beyond_loopback_elsewhere(tmp_path: Path) -> None:
    """A network policy tells torch's store from the weights by its port: the kernel chooses those of gloo."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    script = tmp_path / "rank.py"
    script.write_text(LISTENING)
    own, _ = parse(["2", "--master-port", str(port)])
    command = [sys.executable, "-m", "torch.distributed.run", *rendezvous_arguments(own), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert {tuple(row) for row in json.loads(line) if row[0] == "store"} == {("store", port)}


def test_the_ranks_of_several_machines_meet_at_the_first() -> None:
    words = "8 --nnodes 2 --node-rank 1 --master-addr learner-0.ranks --master-port 29400 --config run.yaml"
    own, others = parse(words.split())
    assert rendezvous_arguments(own) == [
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
def test_an_impossible_rendezvous_of_ranks_is_refused(
    words: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        parse(words.split())
    assert refused.value.code == 2
    assert reason in capsys.readouterr().err
