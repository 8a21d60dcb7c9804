"""The policies hold for a hand-written release, and each one detects a violation."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from chart.broken import ABSENT, broken
from chart.policies.references import claims_exist, mounted_keys_exist
from chart.policies.selection import releases_are_apart
from chart.policies.table import POLICIES, violations
from chart.rendering import Document, parse

SMALL = parse((Path(__file__).parent / "small_release.yaml").read_text(encoding="utf-8"))[0]["items"]
EXTERNAL = ("given-tls", "models")
REPLAY, ROLLOUT = "Deployment/demo-slipstream-replay", "Deployment/demo-slipstream-rollout-spot"
ACTOR = "Deployment/demo-slipstream-actor"
CONFIG, SERVICE = "ConfigMap/demo-slipstream-config", "Service/demo-slipstream-replay"
POD = "spec.template.spec"
CONTAINER = f"{POD}.containers.0"

BREAKS: list[tuple[str, str, str, Any, str]] = [
    ("pods_are_restricted", REPLAY, f"{POD}.hostNetwork", True, "hostNetwork is set"),
    ("pods_are_restricted", REPLAY, f"{POD}.hostPID", True, "hostPID is set"),
    ("pods_are_restricted", REPLAY, f"{POD}.hostIPC", True, "hostIPC is set"),
    (
        "pods_are_restricted",
        REPLAY,
        f"{POD}.volumes.0",
        {"name": "config", "hostPath": {"path": "/"}},
        "a hostPath",
    ),
    ("pods_are_restricted", REPLAY, f"{POD}.securityContext.sysctls", [{"name": "x"}], "sysctls"),
    ("pods_are_restricted", REPLAY, f"{POD}.securityContext.runAsNonRoot", ABSENT, "runAsNonRoot"),
    ("pods_are_restricted", REPLAY, f"{POD}.securityContext.runAsUser", 0, "runAsUser is 0"),
    ("pods_are_restricted", REPLAY, f"{POD}.securityContext.seccompProfile", ABSENT, "seccompProfile"),
    (
        "pods_are_restricted",
        REPLAY,
        f"{CONTAINER}.securityContext.allowPrivilegeEscalation",
        ABSENT,
        "Escalation",
    ),
    ("pods_are_restricted", REPLAY, f"{CONTAINER}.securityContext.privileged", True, "privileged is set"),
    (
        "pods_are_restricted",
        REPLAY,
        f"{CONTAINER}.securityContext.capabilities",
        {"drop": ["NET_RAW"]},
        "drop ALL",
    ),
    ("pods_are_restricted", REPLAY, f"{CONTAINER}.securityContext.capabilities.add", ["SYS_PTRACE"], "add"),
    ("pods_are_restricted", REPLAY, f"{CONTAINER}.securityContext.procMount", "Unmasked", "procMount"),
    ("pods_are_restricted", REPLAY, f"{CONTAINER}.ports.0.hostPort", 50051, "hostPort is set"),
    ("roots_are_read_only", REPLAY, f"{CONTAINER}.securityContext.readOnlyRootFilesystem", False, "not true"),
    ("tokens_are_not_mounted", REPLAY, f"{POD}.automountServiceAccountToken", ABSENT, "is not false"),
    ("tokens_are_not_mounted", REPLAY, f"{POD}.serviceAccountName", "default", "'default' is not an account"),
    (
        "tokens_are_not_mounted",
        "ServiceAccount/demo-slipstream-replay",
        "automountServiceAccountToken",
        True,
        "not false",
    ),
    (
        "components_have_their_own_account",
        ROLLOUT,
        f"{POD}.serviceAccountName",
        "demo-slipstream-replay",
        "is shared",
    ),
    ("resources_are_stated", REPLAY, f"{CONTAINER}.resources.limits", ABSENT, "limits.memory"),
    ("resources_are_stated", REPLAY, f"{CONTAINER}.resources.requests.cpu", ABSENT, "requests.cpu"),
    (
        "resources_are_stated",
        ROLLOUT,
        f"{CONTAINER}.resources.limits[nvidia.com/gpu]",
        ABSENT,
        "nvidia.com/gpu",
    ),
    ("images_are_pinned", REPLAY, f"{CONTAINER}.image", "example.org:5000/services", "no tag"),
    ("images_are_pinned", REPLAY, f"{CONTAINER}.image", "services:latest", "no tag"),
    ("images_are_pinned", REPLAY, f"{CONTAINER}.image", "services@sha256:12", "no tag"),
    ("probes_are_apart", REPLAY, f"{CONTAINER}.startupProbe", ABSENT, "startupProbe is missing"),
    ("probes_are_apart", REPLAY, f"{CONTAINER}.livenessProbe.httpGet.path", "/readyz", "ask the same"),
    ("probes_are_apart", REPLAY, f"{CONTAINER}.livenessProbe.httpGet.port", 9465, "port 9465"),
    (
        "environment_names_are_unique",
        REPLAY,
        f"{CONTAINER}.env",
        [{"name": "A"}, {"name": "A"}],
        "A is set twice",
    ),
    ("service_links_are_off", REPLAY, f"{POD}.enableServiceLinks", ABSENT, "enableServiceLinks"),
    ("mounts_have_volumes", REPLAY, f"{CONTAINER}.volumeMounts.0.name", "conf", "no volume conf"),
    (
        "mounts_have_volumes",
        REPLAY,
        f"{CONTAINER}.volumeMounts.1.mountPath",
        "/etc/slipstream",
        "mounted twice",
    ),
    ("mounts_have_volumes", REPLAY, f"{CONTAINER}.volumeMounts", [], "volume config is not mounted"),
    ("objects_are_labelled", CONFIG, "metadata.labels[helm.sh/chart]", ABSENT, "helm.sh/chart is missing"),
    (
        "objects_are_labelled",
        REPLAY,
        "spec.template.metadata.labels[app.kubernetes.io/component]",
        "",
        "component",
    ),
    (
        "workloads_select_their_pods",
        REPLAY,
        "spec.selector.matchLabels",
        {"x": "y"},
        "does not match its pods",
    ),
    (
        "workloads_select_their_pods",
        REPLAY,
        "spec.selector.matchLabels",
        {"app.kubernetes.io/name": "slipstream"},
        "also matches the pods of Deployment/demo-slipstream-rollout-spot",
    ),
    (
        "selectors_find_pods",
        SERVICE,
        "spec.selector",
        {"x": "y"},
        "Service/demo-slipstream-replay selects no pod",
    ),
    (
        "selectors_find_pods",
        "PodDisruptionBudget/demo-slipstream-replay",
        "spec.selector",
        {"matchLabels": {"x": "y"}},
        "no pod",
    ),
    (
        "selectors_find_pods",
        "PodMonitor/demo-slipstream",
        "spec.selector",
        {"matchLabels": {"x": "y"}},
        "no pod",
    ),
    (
        "selectors_find_pods",
        "NetworkPolicy/demo-slipstream-replay",
        "spec.podSelector",
        {"matchLabels": {"x": "y"}},
        "no pod",
    ),
    ("services_reach_ports", SERVICE, "spec.ports.0.targetPort", "http", "no port http"),
    ("services_reach_ports", SERVICE, "spec.ports.0", {"port": 50052}, "no port 50052"),
    (
        "services_reach_ports",
        SERVICE,
        "spec.selector",
        {"app.kubernetes.io/instance": "demo"},
        "mixes actor, replay, rollout",
    ),
    (
        "monitors_find_ports",
        "PodMonitor/demo-slipstream",
        "spec.podMetricsEndpoints.0.port",
        "http",
        "no port http",
    ),
    ("names_are_unique", ROLLOUT, "metadata.name", "demo-slipstream-replay", "is rendered twice"),
    ("sub_paths_exist", ROLLOUT, f"{CONTAINER}.volumeMounts.0.subPath", "walk.yaml", "has no walk.yaml"),
    ("autoscaled_workloads_have_no_replicas", ROLLOUT, "spec.replicas", 1, "states replicas"),
    ("autoscaled_workloads_have_no_replicas", ROLLOUT, "metadata.name", "another", "which is not there"),
    (
        "configured_pods_bear_its_checksum",
        ROLLOUT,
        "spec.template.metadata.annotations",
        {},
        "annotation checksum/config is missing",
    ),
    ("addresses_are_served", SERVICE, "spec.ports.0.port", 50050, "demo-slipstream-replay:50051 is no port"),
    ("addresses_are_served", SERVICE, "metadata.name", "replay", "demo-slipstream-replay:50051 is no port"),
    (
        "grace_exceeds_draining",
        ACTOR,
        f"{POD}.terminationGracePeriodSeconds",
        25,
        "a grace of 25 s for 25 s",
    ),
    (
        "grace_exceeds_draining",
        CONFIG,
        "data",
        {"run.yaml": "name: small\n", "cluster.yaml": "actor: {drain_seconds: 100}\n"},
        "a grace of 60 s for 105 s",
    ),
    ("grace_exceeds_draining", ACTOR, f"{CONTAINER}.lifecycle.preStop.sleep.seconds", 50, "for 70 s"),
]


def test_the_hand_written_release_meets_every_policy() -> None:
    assert violations(SMALL, external=EXTERNAL) == []


@pytest.mark.parametrize(("policy", "name", "path", "value", "text"), BREAKS, ids=lambda v: str(v)[:40])
def test_a_policy_detects_its_violation(policy: str, name: str, path: str, value: Any, text: str) -> None:
    reported = list(POLICIES[policy](broken(SMALL, name, path, value)))
    assert any(text in violation for violation in reported), reported


def test_every_policy_has_a_detected_violation() -> None:
    elsewhere = {"one_scaler_each"}
    assert {policy for policy, *_ in BREAKS} | elsewhere == set(POLICIES)


def test_two_autoscalers_of_one_workload_are_a_violation() -> None:
    scaler = next(d for d in SMALL if d["kind"] == "ScaledObject")
    second = {**scaler, "kind": "HorizontalPodAutoscaler"}
    reported = list(POLICIES["one_scaler_each"]([*SMALL, second]))
    assert reported == ["demo-slipstream-rollout-spot has two autoscalers"]


def test_a_missing_secret_is_a_violation() -> None:
    assert list(mounted_keys_exist(SMALL)) == [f"{REPLAY}: no Secret given-tls"]


def test_a_missing_key_of_a_config_map_is_a_violation() -> None:
    items = {"name": "demo-slipstream-config", "items": [{"key": "walk.yaml", "path": "x"}]}
    changed = broken(SMALL, REPLAY, f"{POD}.volumes.0.configMap", items)
    reported = list(mounted_keys_exist(changed, EXTERNAL))
    assert reported == [f"{REPLAY}: ConfigMap demo-slipstream-config has no walk.yaml"]


def test_a_variable_from_a_missing_secret_is_a_violation() -> None:
    variable = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "password", "key": "it"}}}
    changed = broken(SMALL, REPLAY, f"{CONTAINER}.env", [variable])
    assert list(mounted_keys_exist(changed, EXTERNAL)) == [f"{REPLAY}: no Secret password"]


def test_a_certificate_counts_as_the_secret_that_it_creates() -> None:
    certificate = {"kind": "Certificate", "metadata": {"name": "c"}, "spec": {"secretName": "given-tls"}}
    assert list(mounted_keys_exist([*SMALL, certificate])) == []


def test_a_missing_claim_is_a_violation() -> None:
    assert list(claims_exist(SMALL)) == [f"{ROLLOUT}: no PersistentVolumeClaim models"]


def test_two_releases_of_the_same_names_and_labels_are_a_violation() -> None:
    reported = list(releases_are_apart(SMALL, SMALL))
    assert "Service/demo-slipstream-replay is in both releases" in reported
    assert f"{SMALL_SERVICE} also selects {REPLAY} of the other release" in reported


def test_two_releases_of_different_names_are_separate() -> None:
    assert list(releases_are_apart(SMALL, [renamed(document) for document in SMALL])) == []


SMALL_SERVICE = "Service/demo-slipstream-replay"


def renamed(document: Document) -> Document:
    """Return the object as in a release named `other`."""

    def change(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: change(item) for key, item in value.items()}
        if isinstance(value, list):
            return [change(item) for item in value]
        return value.replace("demo", "other") if isinstance(value, str) else value

    return dict(change(deepcopy(document)))
