"""The output that docs/cluster.md shows is that of the commands."""

from pathlib import Path

import pytest
from cluster.conftest import Command
from cluster.fake_kubernetes import FakeKubernetes
from cluster.objects import PODS
from cluster.pages import circle

DOCUMENT = Path(__file__).parents[2] / "docs" / "cluster.md"
LOGS = {
    "replay": (
        "2026-05-01T10:00:01Z",
        "2026-05-01T10:00:01.004Z info    replay: ready address=0.0.0.0:50051",
    ),
    "learner": ("2026-05-01T10:00:02Z", "2026-05-01T10:00:02.117Z info    learner: attached version=12"),
    "rollout/spot": ("2026-05-01T10:00:03Z", "2026-05-01T10:00:03.250Z info    rollout: serving version=12"),
}


def test_docs_cluster_shows_the_output_of_the_commands(
    cluster: FakeKubernetes, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.logs = {PODS[title][0]: [line] for title, line in LOGS.items()}
    with circle(cluster):
        del cluster.ports[PODS["verifier"][0]]
        command("status")
    command("scale", "rollout/steady", "3")
    command("scale", "rollout/spot", "3")
    command("logs")
    for pods in (PODS["rollout/steady"], PODS["rollout/spot"], PODS["learner"]):
        cluster.objects["pods"] = [p for p in cluster.objects["pods"] if p["metadata"]["name"] not in pods]
    command("pause")
    command("resume")
    shown = DOCUMENT.read_text(encoding="utf-8").split("```\n")[1::2]
    output = capsys.readouterr()
    for line in (output.out + output.err).splitlines():
        assert any(line in block.splitlines() for block in shown), line
