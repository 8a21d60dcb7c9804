"""Who gets GPUs: containers that ask for them, and no other."""

from typing import Any

import pytest
from chart.manifests import Document, pod_templates
from chart.release_small import small_release
from chart.rendering import render

WITH = {"gpu": {"count": 1}}
ROOMS = {"learner", "rollout"}
RUN = "model: {tiny: {}}\ndata: {kind: addition, digits: 1}\nalgorithm: {preset: grpo}\n"
GPUS: dict[str, Any] = {"learner": WITH, "rollout": {"defaults": WITH}, "run": {"config": RUN}}


@pytest.mark.parametrize("values", [{}, GPUS], ids=["cpu", "gpu"])
def test_a_container_that_asks_for_no_gpu_sees_none(values: dict[str, Any]) -> None:
    """Images made on CUDA's ask the runtime for all GPUs of a node by a variable of their own."""
    for pod in pod_templates(render(small_release(**values))):
        for container in pod.all_containers if pod.component in ROOMS else []:
            asks = "nvidia.com/gpu" in container["resources"]["limits"]
            variables = {v["name"]: v.get("value") for v in container["env"]}
            assert variables.get("NVIDIA_VISIBLE_DEVICES") == (None if asks else "void"), container["name"]


def test_a_model_is_made_without_a_gpu_whatever_the_run_says() -> None:
    for container in initial(render(small_release(**GPUS))):
        assert "--set learner.device=cpu" in " ".join(container["command"])


def initial(documents: list[Document]) -> list[Document]:
    found = [c for pod in pod_templates(documents) for c in pod.spec.get("initContainers") or []]
    assert len(found) == 2
    return found
