"""A fake cluster with one release, and `slipstream cluster` with the rights of the chart's Role."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster.fake_kubernetes import FakeKubernetes, Right, kubeconfig, serving
from cluster.objects import FULL, release
from slipstream.cli.__main__ import main
from slipstream.cluster.permissions import PERMISSIONS

ROLE: set[Right] = {
    (group, resource, verb) for (group, resource), verbs in PERMISSIONS.items() for verb in verbs
}
Command = Callable[..., int]


@pytest.fixture
def cluster() -> Iterator[FakeKubernetes]:
    with serving(FakeKubernetes(objects=release(), maps={f"{FULL}-paused": {}}, allowed=set(ROLE))) as fake:
        yield fake


@pytest.fixture
def command(cluster: FakeKubernetes, tmp_path: Path) -> Command:
    """Return a function that runs `slipstream cluster`: `command("status", "--json")` is its exit status."""
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig(cluster), encoding="utf-8")

    def run(name: str, *arguments: str) -> int:
        return main(["cluster", name, "--kubeconfig", str(path), *arguments])

    return run
