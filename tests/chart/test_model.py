"""The volume of the model."""

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
def test_a_directory_of_the_node_must_exist(model: dict[str, Any]) -> None:
    """A directory that Kubernetes creates belongs to root, so pods could not write to it."""
    run = RUN.replace("warmup:", "#") if model["mode"] == "volume" else RUN
    pods = pod_templates(render(small_release(model=model, run={"config": run})))
    host_paths = [v["hostPath"] for pod in pods for v in pod.spec.get("volumes") or [] if "hostPath" in v]
    assert host_paths
    assert {(at["path"], at["type"]) for at in host_paths} == {("/mnt/models", "Directory")}
