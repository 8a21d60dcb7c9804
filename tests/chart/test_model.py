"""Where the model is kept."""

from typing import Any

import pytest
from chart.manifests import pod_templates
from chart.release_small import RUN, small_release
from chart.rendering import render

DIRECTORY = {"hostPath": "/mnt/models"}


@pytest.mark.parametrize(
    "model",
    [{"mode": "volume", "volume": DIRECTORY}, {"mode": "warmup", "cache": {"kind": "hostPath", **DIRECTORY}}],
    ids=["volume", "cache"],
)
def test_a_directory_of_the_node_must_be_there(model: dict[str, Any]) -> None:
    """What Kubernetes makes is root's, and nobody else can write it."""
    run = RUN.replace("warmup:", "#") if model["mode"] == "volume" else RUN
    pods = pod_templates(render(small_release(model=model, run={"config": run})))
    found = [v["hostPath"] for pod in pods for v in pod.spec.get("volumes") or [] if "hostPath" in v]
    assert found
    assert {(at["path"], at["type"]) for at in found} == {("/mnt/models", "Directory")}
