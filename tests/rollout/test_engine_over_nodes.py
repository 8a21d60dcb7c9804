"""One engine of two processes that share only the network, like those of two pods."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError

import pytest
import yaml
from rollout.live_engine import Live, difference, perturbed, start_live
from slipstream.rollout.engine import EngineDied
from slipstream.rollout.node_rank import NodeRank

pytestmark = [pytest.mark.vllm, pytest.mark.long]
CLOSE = 2e-4
SECONDS = 60.0
SPAN = ("rollout.tensor_parallel=2", "rollout.nodes=2")


@dataclass(slots=True, kw_only=True)
class Engine:
    """An engine: its head in this process, and its other node."""

    live: Live
    node: subprocess.Popen[bytes]
    metrics_port: int
    ended: bool = False

    def end(self) -> None:
        """End the head, once."""
        if not self.ended:
            self.ended = True
            self.live.play(self.live.engine.close())
            self.live.learner.close()

    def answer(self, path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}{path}", timeout=5) as answer:
                return int(answer.status)
        except HTTPError as error:
            return error.code


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def start_node(directory: Path, *, port: int, metrics_port: int) -> subprocess.Popen[bytes]:
    run = directory / "run.yaml"
    sections = {
        "model": {"path": str(directory / "model")},
        "rollout": {"group_size": 8, "max_groups": 4, "kv_cache_gib": 0.1, "max_new_tokens": 16},
    }
    run.write_text(yaml.safe_dump(sections), encoding="utf-8")
    settings = [f"--set={setting}" for setting in (*SPAN, f"telemetry.port={metrics_port}")]
    node_arguments = ["--node-rank=1", "--master-addr=127.0.0.1", f"--master-port={port}"]
    command = [sys.executable, "-m", "slipstream.rollout.node", f"--config={run}", *settings, *node_arguments]
    return subprocess.Popen([*command, f"--parent={os.getpid()}"])


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    environment = dict(os.environ)
    monkeypatch.setenv("VLLM_HOST_IP", "127.0.0.1")
    port, metrics_port = free_port(), free_port()
    (tmp_path / "model").mkdir()
    node = start_node(tmp_path, port=port, metrics_port=metrics_port)
    try:
        node_rank = NodeRank(rank=0, master_addr="127.0.0.1", master_port=port)
        live = start_live(tmp_path / "model", *SPAN, node=node_rank)
        started = Engine(live=live, node=node, metrics_port=metrics_port)
        yield started
        started.end()
    finally:
        node.kill()
        node.wait()
        os.environ.clear()
        os.environ.update(environment)


def test_an_engine_on_two_nodes_has_the_learners_logprobs_and_its_nodes_end_together(engine: Engine) -> None:
    live = engine.live
    for seed in (1, 2):
        policy = perturbed(live.policy, seed=seed)
        live.play(live.serve(policy))
        turn = live.play(live.sample())
        assert difference(policy, turn) < CLOSE
        assert [span.version for span in turn.spans] == [live.version]
    assert [engine.answer(path) for path in ("/startupz", "/livez", "/readyz")] == [200, 200, 200]
    engine.end()
    assert engine.node.wait(SECONDS) == 1


def test_a_stopped_node_waits_for_the_head_and_exits_with_0(engine: Engine) -> None:
    engine.node.send_signal(signal.SIGTERM)
    assert engine.node.wait(SECONDS) == 0
    with pytest.raises(EngineDied):
        engine.live.play(engine.live.sample())
