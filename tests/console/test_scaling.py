"""Scaling by the console: it has the rules of `slipstream cluster scale`, and needs a release."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.fake_kubernetes import FakeKubernetes, Right, kubeconfig, serving
from cluster.objects import FULL, KEDA, PLAIN, release
from console.runs import make_run
from fastapi.testclient import TestClient
from slipstream.cluster.autoscalers import HELD
from slipstream.config import parse_config
from slipstream.console.app import make_app
from slipstream.console.catalogue import open_catalogue
from slipstream.console.scaling import Pools

RIGHTS: set[Right] = {
    ("", "configmaps", "get"),
    ("apps", "deployments", "list"),
    ("apps", "statefulsets", "list"),
    ("apps", "deployments/scale", "patch"),
    ("leaderworkerset.x-k8s.io", "leaderworkersets", "list"),
    ("autoscaling", "horizontalpodautoscalers", "list"),
    ("keda.sh", "scaledobjects", "list"),
    ("keda.sh", "scaledobjects", "patch"),
}
"""Those that the chart gives to the console of a release; tests/chart/test_console.py compares them."""


@pytest.fixture
def cluster() -> Iterator[FakeKubernetes]:
    with serving(FakeKubernetes(objects=release(), maps={f"{FULL}-paused": {}}, allowed=set(RIGHTS))) as fake:
        yield fake


def visitor(
    cluster: FakeKubernetes, folder: Path, *, read_only: bool = False, name: str = "run1"
) -> TestClient:
    """Return a client of the console of a release."""
    file = folder / "kubeconfig"
    file.write_text(kubeconfig(cluster), encoding="utf-8")
    pools = Pools(release=name, kubeconfig=file)
    run = open_catalogue(make_run(folder / "made", steps=1))
    pod = parse_config({"replay": {"address": "127.0.0.1:1"}})
    return TestClient(make_app(run, pod=pod, read_only=read_only, pools=pools))


def test_the_pools_are_those_of_the_release(cluster: FakeKubernetes, tmp_path: Path) -> None:
    spot, steady = visitor(cluster, tmp_path).get("/api/pools").json()["pools"]
    assert (steady["name"], steady["desired"], steady["autoscaler"]) == ("rollout/steady", 2, None)
    assert (spot["name"], spot["autoscaler"]["kind"]) == ("rollout/spot", "ScaledObject")


def test_a_visitor_sets_the_number_of_rollouts_of_a_pool(cluster: FakeKubernetes, tmp_path: Path) -> None:
    answer = visitor(cluster, tmp_path).post("/api/scale", json={"pool": "rollout/steady", "replicas": 5})
    assert answer.json() == {"words": "rollout/steady: 2 → 5"}
    assert cluster.replicas()[PLAIN] == 5
    assert cluster.patches == [f"deployments/{PLAIN}/scale"]


def test_keda_holds_a_number_and_scales_again(cluster: FakeKubernetes, tmp_path: Path) -> None:
    page = visitor(cluster, tmp_path)
    assert page.post("/api/scale", json={"pool": "rollout/spot", "replicas": 3}).status_code == 409
    held = page.post("/api/scale", json={"pool": "rollout/spot", "replicas": 3, "hold": True})
    assert "KEDA holds 3" in held.json()["words"]
    assert cluster.named("scaledobjects", KEDA)["metadata"]["annotations"][HELD] == "3"
    assert page.get("/api/pools").json()["pools"][0]["autoscaler"]["held"] == 3
    again = page.post("/api/scale", json={"pool": "rollout/spot"})
    assert "scaled by KEDA again" in again.json()["words"]


@pytest.mark.parametrize(
    ("order", "status", "words"),
    [
        ({"pool": "learner", "replicas": 2}, 409, "one job of a fixed number of ranks"),
        ({"pool": "rollout/gone", "replicas": 2}, 409, "has no pool 'gone'"),
        ({"pool": "rollout/steady", "replicas": -1}, 422, "greater than or equal to 0"),
        ({"pool": "rollout/steady", "replicas": 10**9}, 422, "less than or equal to"),
        ({"replicas": 1}, 422, "pool"),
        ({"pool": "rollout/steady", "replicas": True}, 422, "valid integer"),
        ({"pool": "rollout/steady", "replicas": "7"}, 422, "valid integer"),
        ({"pool": "rollout/spot", "replicas": 3, "hold": 1}, 422, "valid boolean"),
        ({"pool": "rollout/spot", "hold": True}, 422, "hold needs replicas"),
    ],
)
def test_what_cannot_be_done_is_told_and_changes_nothing(
    order: dict[str, Any], status: int, words: str, cluster: FakeKubernetes, tmp_path: Path
) -> None:
    answer = visitor(cluster, tmp_path).post("/api/scale", json=order)
    assert answer.status_code == status
    assert words in answer.text
    assert cluster.patches == []


def test_a_missing_right_is_named(cluster: FakeKubernetes, tmp_path: Path) -> None:
    cluster.allowed.discard(("apps", "deployments/scale", "patch"))
    answer = visitor(cluster, tmp_path).post("/api/scale", json={"pool": "rollout/steady", "replicas": 5})
    assert answer.status_code == 409
    assert "deployments/scale" in answer.json()["error"]


def test_a_release_that_is_not_there_is_named(cluster: FakeKubernetes, tmp_path: Path) -> None:
    answer = visitor(cluster, tmp_path, name="run9").get("/api/pools")
    assert (answer.status_code, "no release 'run9'" in answer.json()["error"]) == (409, True)


def test_visitors_who_may_only_look_scale_nothing(cluster: FakeKubernetes, tmp_path: Path) -> None:
    page = visitor(cluster, tmp_path, read_only=True)
    assert page.post("/api/scale", json={"pool": "rollout/steady", "replicas": 5}).status_code == 403
    assert page.get("/api/run").json()["scales"] is False
    assert cluster.patches == []


def test_a_console_without_a_release_scales_nothing(tmp_path: Path) -> None:
    page = TestClient(make_app(open_catalogue(make_run(tmp_path / "made", steps=1))))
    assert page.get("/api/run").json()["scales"] is False
    assert page.get("/api/pools").status_code == 403
    answer = page.post("/api/scale", json={"pool": "rollout", "replicas": 5})
    assert (answer.status_code, "console.allowScaling" in answer.text) == (403, True)
