"""A further node of an engine, with fake ranks, runs as long as the head of the engine."""

import asyncio
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from slipstream.config import parse_config
from slipstream.rollout import node
from slipstream.rollout.engine import EngineDied
from slipstream.rollout.node_rank import NodeRank
from slipstream.rpc.errors import Unreachable
from slipstream.rpc.pod import Pod
from slipstream.telemetry.health import Health
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics

SECONDS = 10.0
HANGS = """
import time
from types import SimpleNamespace
from slipstream.config import parse_config
from slipstream.rollout.node import _bounded
from slipstream.telemetry.logs import Log

config = parse_config({}, ("rollout.start_timeout_seconds=0.2",))
with _bounded(SimpleNamespace(config=config, log=Log(pod="test"))):
    time.sleep(50)
"""


@dataclass
class Ranks:
    """The part of vLLM's executor that has its processes."""

    alive: bool = True
    ended: bool = False
    workers: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.workers = [SimpleNamespace(rank=1, proc=SimpleNamespace(is_alive=lambda: self.alive))]

    def shutdown(self) -> None:
        self.ended = True


@dataclass
class Head:
    """The head of an engine: a port that is open while the head runs."""

    server: asyncio.Server
    peers: list[asyncio.StreamWriter]
    met: asyncio.Event

    @property
    def node(self) -> NodeRank:
        port = self.server.sockets[0].getsockname()[1]
        return NodeRank(rank=1, master_addr="127.0.0.1", master_port=port)

    def go(self) -> None:
        self.server.close()
        for writer in self.peers:
            writer.transport.abort()


async def start_head() -> Head:
    peers: list[asyncio.StreamWriter] = []
    met = asyncio.Event()

    def meet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(writer)
        met.set()

    return Head(server=await asyncio.start_server(meet, "127.0.0.1", 0), peers=peers, met=met)


def pod_of(*overrides: str) -> Pod:
    stop = asyncio.Event()
    return Pod(
        name="rollout-0-1",
        config=parse_config({}, ("rollout.nodes=2", *overrides)),
        log=Log(pod="test"),
        metrics=Metrics(),
        health=Health(stopping=stop.is_set),
        stop=stop,
        ready_file=None,
        metrics_port=0,
    )


def started(monkeypatch: pytest.MonkeyPatch, pod: Pod, head: Head) -> tuple[Ranks, asyncio.Task[None]]:
    ranks = Ranks()
    monkeypatch.setattr(node, "start_ranks", lambda _config, _node: ranks)
    return ranks, asyncio.create_task(node.main(pod, node=head.node))


def test_a_node_ends_with_an_error_when_its_head_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        pod, head = pod_of(), await start_head()
        ranks, running = started(monkeypatch, pod, head)
        await asyncio.wait_for(head.met.wait(), SECONDS)
        assert pod.health.ready
        assert not running.done()
        head.go()
        with pytest.raises(EngineDied, match="head of the engine has ended"):
            await asyncio.wait_for(running, SECONDS)
        assert ranks.ended

    asyncio.run(play())


def test_a_node_ends_with_an_error_when_one_of_its_ranks_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        pod, head = pod_of(), await start_head()
        ranks, running = started(monkeypatch, pod, head)
        await asyncio.wait_for(head.met.wait(), SECONDS)
        ranks.alive = False
        with pytest.raises(EngineDied, match="rank 1 of the engine ended"):
            await asyncio.wait_for(running, SECONDS)
        assert ranks.ended
        head.go()

    asyncio.run(play())


def test_a_stopped_node_waits_for_its_head_to_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        pod, head = pod_of(), await start_head()
        ranks, running = started(monkeypatch, pod, head)
        await asyncio.wait_for(head.met.wait(), SECONDS)
        pod.stop.set()
        await asyncio.sleep(0.2)
        assert not running.done()
        assert not pod.health.ready
        head.go()
        await asyncio.wait_for(running, SECONDS)
        assert ranks.ended

    asyncio.run(play())


def test_a_stopped_node_waits_for_its_head_no_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        monkeypatch.setattr(node, "HEAD_STOP_SECONDS", 0.2)
        pod, head = pod_of(), await start_head()
        ranks, running = started(monkeypatch, pod, head)
        await asyncio.wait_for(head.met.wait(), SECONDS)
        pod.stop.set()
        await asyncio.wait_for(running, SECONDS)
        assert ranks.ended
        head.go()

    asyncio.run(play())


def nowhere() -> NodeRank:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return NodeRank(rank=1, master_addr="127.0.0.1", master_port=listening.getsockname()[1])


def test_a_head_that_never_starts_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "HEAD_SECONDS", 0.1)
    with pytest.raises(Unreachable, match=r"no head of the engine at .* in 0\.1 s"):
        asyncio.run(node.main(pod_of(), node=nowhere()))


def test_a_node_that_waits_for_its_head_can_be_stopped() -> None:
    async def play() -> None:
        pod = pod_of()
        running = asyncio.create_task(node.main(pod, node=nowhere()))
        await asyncio.sleep(0.1)
        assert not pod.health.started
        pod.stop.set()
        await asyncio.wait_for(running, SECONDS)

    asyncio.run(play())


def test_a_start_that_hangs_ends_the_process(tmp_path: Path) -> None:
    """A start that hangs blocks the event loop, so another thread must end the process."""
    program = tmp_path / "hang.py"
    program.write_text(HANGS, encoding="utf-8")
    ended = subprocess.run([sys.executable, program], timeout=60, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "the nodes of the engine did not connect in 0.2 s" in ended.stdout + ended.stderr
