"""A visitor scales the pools of a release, whose API server and replay are fakes."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from browser.pages import Console
from cluster.fake_kubernetes import FakeKubernetes, kubeconfig, serving
from cluster.objects import FULL, KEDA, PLAIN, release
from console.runs import make_run
from console.test_scaling import RIGHTS
from slipstream.cluster.autoscalers import HELD
from slipstream.v1 import replay_pb2 as pb
from slipstream.v1.replay_pb2_grpc import ReplayServicer, add_ReplayServicer_to_server

pytestmark = pytest.mark.browser


class Replay(ReplayServicer):
    """Replay of a run that goes on."""

    def GetStats(self, request: Any, context: Any) -> pb.GetStatsResponse:
        return pb.GetStatsResponse(version=7)

    def GetActivity(self, request: Any, context: Any) -> pb.GetActivityResponse:
        return pb.GetActivityResponse()

    def ListRollouts(self, request: Any, context: Any) -> pb.ListRolloutsResponse:
        return pb.ListRolloutsResponse()


@pytest.fixture
def cluster() -> Iterator[FakeKubernetes]:
    with serving(FakeKubernetes(objects=release(), maps={f"{FULL}-paused": {}}, allowed=set(RIGHTS))) as fake:
        yield fake


@pytest.fixture
def page(
    console: Console,
    cluster: FakeKubernetes,
    serve: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Console]:
    """Return the page of the run of a release whose console may scale."""
    server = grpc.server(ThreadPoolExecutor(2))
    add_ReplayServicer_to_server(Replay(), server)
    config = tmp_path / "config.yaml"
    config.write_text(f"replay: {{address: '127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}'}}\n")
    server.start()
    file = tmp_path / "kubeconfig"
    file.write_text(kubeconfig(cluster), encoding="utf-8")
    monkeypatch.setenv("KUBECONFIG", str(file))
    run = make_run(tmp_path / "made", steps=2)
    console.address = serve(run, "--config", str(config), "--release", "run1")
    console.open("run")
    yield console
    server.stop(0)


def choose(console: Console, pool: str) -> None:
    console.page.click("[data-act=scale]")
    console.page.select_option("dialog select", pool)


def words(console: Console) -> str:
    return console.words("dialog [role=status]")


def test_a_pool_without_an_autoscaler_gets_the_number(page: Console, cluster: FakeKubernetes) -> None:
    choose(page, "rollout/steady")
    assert words(page) == "2 wanted, 2 ready. No autoscaler changes the number."
    page.page.fill("dialog input", "5")
    page.page.click("dialog >> text=Cancel")
    assert cluster.patches == []
    choose(page, "rollout/steady")
    page.page.fill("dialog input", "-1")
    page.page.click("dialog [data-act=confirm]")
    assert page.page.locator("dialog").count() == 1
    page.page.fill("dialog input", "5")
    page.page.click("dialog [data-act=confirm]")
    page.becomes("main [role=status]", "rollout/steady: 2 → 5")
    assert cluster.replicas()[PLAIN] == 5


def test_keda_holds_a_number_until_the_visitor_lets_it_scale_again(
    page: Console, cluster: FakeKubernetes
) -> None:
    choose(page, "rollout/spot")
    assert "KEDA scales the pool" in words(page)
    assert page.page.locator("dialog [data-act=auto]").is_hidden()
    page.page.fill("dialog input", "3")
    page.page.click("dialog [data-act=confirm]")
    page.page.locator("main [role=status]", has_text="KEDA holds 3").wait_for()
    choose(page, "rollout/spot")
    assert "It holds 3 now." in words(page)
    page.page.click("dialog [data-act=auto]")
    page.page.locator("main [role=status]", has_text="scaled by KEDA again").wait_for()
    assert HELD not in cluster.named("scaledobjects", KEDA)["metadata"]["annotations"]


def test_an_error_of_the_cluster_is_told(page: Console, cluster: FakeKubernetes) -> None:
    cluster.allowed.clear()
    page.page.click("[data-act=scale]")
    page.page.locator("main [role=status]", has_text="you may not list").wait_for()
    page.errors = [error for error in page.errors if "Failed to load resource" not in error]
