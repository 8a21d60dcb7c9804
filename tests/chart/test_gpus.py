"""Only containers that request GPUs get them."""

import functools
from typing import Any

import pytest
import yaml
from chart.manifests import Document, pod_templates
from chart.release_small import small_release
from chart.rendering import render
from slipstream.config import RunConfig, parse_config
from slipstream.config.load import laid_over

QUARTER_OF_AN_HOUR = 900
WITH = {"gpu": {"count": 1}}
COMPONENTS = {"learner", "rollout"}
RUN = "model: {tiny: {}}\ndata: {kind: addition, digits: 1}\nalgorithm: {preset: grpo}\n"
TAUGHT = f"{RUN}teacher: {{path: /models/teacher}}\n".replace("preset: grpo", "distillation: {}")
SCORED = f"{RUN}rewards: [{{name: reward_model, path: /models/reward}}]\n"
MODELS = {"existingClaim": "models"}
SCORING = {"gpu": {"count": 1}, "models": MODELS, "image": {"repository": "slipstream/verifier"}}
GPUS: dict[str, Any] = {"learner": WITH, "rollout": {"defaults": WITH}, "run": {"config": RUN}}


@pytest.mark.parametrize("values", [{}, GPUS], ids=["cpu", "gpu"])
def test_a_container_that_requests_no_gpu_sees_none(values: dict[str, Any]) -> None:
    """A variable of images based on CUDA requests all GPUs of a node from the runtime."""
    for pod in pod_templates(render(small_release(**values))):
        for container in pod.all_containers if pod.component in COMPONENTS else []:
            asks = "nvidia.com/gpu" in container["resources"]["limits"]
            variables = {v["name"]: v.get("value") for v in container["env"]}
            assert variables.get("NVIDIA_VISIBLE_DEVICES") == (None if asks else "void"), container["name"]


def test_a_model_is_created_without_a_gpu_for_every_run() -> None:
    documents = render(small_release(**GPUS))
    for container in initial([d for d in documents if not d["metadata"]["name"].endswith("-actor")]):
        assert "--set learner.device=cpu" in " ".join(container["command"])


@pytest.mark.parametrize(
    ("values", "components"),
    [
        ({}, set()),
        (GPUS, {"learner", "rollout"}),
        (
            {**GPUS, "run": {"config": TAUGHT}, "teacher": {"models": MODELS}},
            {"learner", "rollout", "teacher"},
        ),
        ({"run": {"config": SCORED}, "verifier": SCORING}, {"verifier"}),
    ],
    ids=["none", "learner and rollouts", "teacher", "verifier"],
)
def test_a_component_with_gpus_is_configured_to_use_them(
    values: dict[str, Any], components: set[str]
) -> None:
    """With this configuration a missing driver is an error instead of a run on CPUs."""
    config = pods_read(values)
    sections = {name: getattr(config, name) for name in ("learner", "rollout", "teacher", "verifier")}
    assert {name for name, section in sections.items() if section.device == "cuda"} == components


@pytest.mark.parametrize("nodes", [1, 2])
def test_an_engine_that_needs_a_quarter_of_an_hour_to_start_is_not_killed(nodes: int) -> None:
    run = f"{RUN}rollout: {{tensor_parallel: {nodes}}}\n"
    rollout = {"defaults": {**WITH, "nodes": nodes}}
    documents = render(small_release(**{**GPUS, "rollout": rollout, "run": {"config": run}}))
    pods = [pod for pod in pod_templates(documents) if pod.component == "rollout"]
    assert len(pods) == nodes
    for pod in pods:
        (probe,) = (container["startupProbe"] for container in pod.spec["containers"])
        assert probe["periodSeconds"] * probe["failureThreshold"] > QUARTER_OF_AN_HOUR
    for document in documents:  # nor does the Deployment of rollouts count as failed
        if document["kind"] == "Deployment" and "rollout" in document["metadata"]["name"]:
            assert document["spec"]["progressDeadlineSeconds"] > 2 * QUARTER_OF_AN_HOUR


def pods_read(values: dict[str, Any]) -> RunConfig:
    """Return the configuration that the pods of a release read."""
    (config_map,) = [
        document["data"]
        for document in render(small_release(**values))
        if "run.yaml" in document.get("data", {})
    ]
    trees = (yaml.safe_load(config_map[name]) for name in ("run.yaml", "cluster.yaml"))
    return parse_config(functools.reduce(laid_over, trees))


def initial(documents: list[Document]) -> list[Document]:
    containers = [c for pod in pod_templates(documents) for c in pod.spec.get("initContainers") or []]
    model_containers = [container for container in containers if container["name"] == "model"]
    assert len(model_containers) == 2
    return model_containers
