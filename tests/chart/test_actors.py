"""Actors are pods without weights; the chart gives rollouts the addresses and the name that actors use."""

from typing import Any

import pytest
import yaml
from chart.manifests import Document, PodTemplate, of_kind, pod_templates
from chart.release_small import FULLNAME, RUN, small_release
from chart.rendering import render

SHARED = {"cache": {"kind": "claim", "existingClaim": "models"}}
LOADED = {"mode": "download", "download": {"repository": "example/policy", "revision": "4f2c9d1"}, **SHARED}
WITHOUT_TINY = RUN.replace("model: {tiny", "#").replace("warmup:", "#")


def pods_of(documents: list[Document], component: str) -> list[PodTemplate]:
    return [pod for pod in pod_templates(documents) if pod.component == component]


def variables(pod: PodTemplate) -> dict[str, Any]:
    return {variable["name"]: variable for variable in pod.containers[0]["env"]}


def configuration(documents: list[Document]) -> dict[str, Any]:
    (data,) = [d["data"] for d in of_kind(documents, "ConfigMap") if "cluster.yaml" in (d.get("data") or {})]
    loaded: dict[str, Any] = yaml.safe_load(data["cluster.yaml"])
    return loaded


def test_a_rollout_reports_the_address_of_its_pod_and_other_nodes_of_its_engine_report_none() -> None:
    run = RUN.replace("engine: emulated", "tensor_parallel: 2")
    pools = [{"name": "narrow", "gpu": {"count": 2}}, {"name": "wide", "nodes": 2, "gpu": {"count": 1}}]
    documents = render(
        small_release(run={"config": run}, rollout={"pools": pools}, learner={"gpu": {"count": 1}})
    )
    hosts = {
        (pod.labels["slipstream.dev/pool"], pod.containers[0]["command"][-1]): variables(pod).get(
            "SLIPSTREAM_ROLLOUT_HOST"
        )
        for pod in pods_of(documents, "rollout")
    }
    own = {
        "name": "SLIPSTREAM_ROLLOUT_HOST",
        "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}},
    }
    assert hosts == {
        ("narrow", "slipstream.rollout"): own,
        ("wide", "slipstream.rollout"): own,
        ("wide", "slipstream.rollout.node"): None,
    }


def test_the_name_that_actors_expect_is_in_the_certificate_of_the_rollouts() -> None:
    documents = render(small_release(tls={"mode": "certManager"}))
    name = configuration(documents)["rollout"]["server_name"]
    (certificate,) = [
        d["spec"] for d in of_kind(documents, "Certificate") if d["metadata"]["name"] == f"{FULLNAME}-rollout"
    ]
    assert name in certificate["dnsNames"]


def test_without_certificates_actors_expect_no_name() -> None:
    assert "server_name" not in configuration(render(small_release(tls={"mode": "none"})))["rollout"]


def test_an_actor_has_its_own_certificate_without_a_name() -> None:
    documents = render(small_release(tls={"mode": "certManager"}))
    (certificate,) = [
        d["spec"] for d in of_kind(documents, "Certificate") if d["metadata"]["name"] == f"{FULLNAME}-actor"
    ]
    assert certificate["uris"] == ["spiffe://demo.training.slipstream/actor"]
    assert "dnsNames" not in certificate


@pytest.mark.parametrize(
    ("values", "argument"),
    [
        ({"model": SHARED}, None),
        (
            {
                "model": LOADED,
                "run": {"config": WITHOUT_TINY},
                "network": {"egress": {"huggingface": True}},
            },
            "--without-weights",
        ),
    ],
    ids=["made", "downloaded"],
)
def test_an_actor_stores_only_the_tokenizer_and_outside_of_the_shared_cache_of_weights(
    values: dict[str, Any], argument: str | None
) -> None:
    """Pods that need weights would fail on a cache that has config.json and no weights."""
    documents = render(small_release(**values))
    (actor,) = pods_of(documents, "actor")
    (container,) = actor.spec["initContainers"]
    assert {v["name"]: v for v in actor.spec["volumes"]}["models"] == {"name": "models", "emptyDir": {}}
    assert (argument in container["args"]) if argument else ("tiny_files" in container["command"][-2])
    (rollout,) = pods_of(documents, "rollout")
    assert "persistentVolumeClaim" in {v["name"]: v for v in rollout.spec["volumes"]}["models"]


@pytest.mark.parametrize(
    ("run", "values", "seconds"),
    [
        ("", {}, 35),
        ("", {"drainSeconds": 12.5, "marginSeconds": 10, "preStopSeconds": 2}, 25),
        ("actor: {drain_seconds: 120}\n", {}, 150),
    ],
)
def test_an_actor_has_time_for_its_pause_its_drain_and_its_leases(
    run: str, values: dict[str, Any], seconds: int
) -> None:
    documents = render(small_release(run={"config": RUN + run}, actor=values))
    (actor,) = pods_of(documents, "actor")
    assert actor.spec["terminationGracePeriodSeconds"] == seconds
    (rollout,) = pods_of(documents, "rollout")
    assert rollout.spec["terminationGracePeriodSeconds"] == 30


def test_an_actor_runs_in_the_image_without_torch() -> None:
    (actor,) = pods_of(render(small_release()), "actor")
    assert {container["image"] for container in actor.all_containers} == {"slipstream/services:0.1.0"}
