"""The console as a pod: what it mounts, who may open it, and what its visitors may do."""

from typing import Any

import pytest
from chart.combinations import CONSOLE
from chart.manifests import (
    COMPONENT_LABEL,
    Document,
    PodTemplate,
    by_name,
    label,
    of_kind,
    pod_templates,
    selects,
)
from chart.release_small import FULLNAME, small_release
from chart.rendering import render
from chart.test_platform import ALL
from console.test_scaling import RIGHTS
from render import Release, render_files
from slipstream.console.__main__ import parse_arguments

NAME = f"{FULLNAME}-console"
SHARED = {"checkpoints": {"accessModes": ["ReadWriteMany"]}}
RUNS = "/var/lib/slipstream"


def console_release(learner: dict[str, Any] | None = None, **values: Any) -> Release:
    """Return the small release with a console."""
    return small_release(learner={**SHARED, **(learner or {})}, console={**CONSOLE, **values})


def pod_of(documents: list[Document], component: str) -> PodTemplate:
    (pod,) = [pod for pod in pod_templates(documents) if pod.component == component]
    return pod


def arguments_of(release: Release) -> Any:
    """Return the arguments of the container as the program reads them."""
    container = pod_of(render(release), "console").containers[0]
    assert container["command"][-3:] == ["python", "-m", "slipstream.console"]
    return parse_arguments(container["args"])


def notes(release: Release) -> str:
    return render_files(release)["NOTES.txt"]


def test_without_the_value_there_is_no_console() -> None:
    documents = render(small_release())
    assert [d for d in documents if d["metadata"]["labels"].get(COMPONENT_LABEL) == "console"] == []
    assert "console" not in notes(small_release())


def test_the_console_shows_the_directory_to_which_the_learner_writes_and_cannot_write_there() -> None:
    documents = render(console_release())
    console, learner = pod_of(documents, "console"), pod_of(documents, "learner")
    mounts = {pod.component: checkpoints_of(pod) for pod in (console, learner)}
    assert mounts["console"] == {**mounts["learner"], "readOnly": True}
    volumes = {pod.component: volume_of(pod, "checkpoints") for pod in (console, learner)}
    assert volumes["console"] == {**volumes["learner"], "readOnly": True}
    assert str(arguments_of(console_release()).run_dir) == f"{RUNS}/demo"


def checkpoints_of(pod: PodTemplate) -> Document:
    """Return the mount of the run directories."""
    (mount,) = [m for m in pod.containers[0]["volumeMounts"] if m["mountPath"] == RUNS]
    return dict(mount)


def volume_of(pod: PodTemplate, name: str) -> Document:
    """Return the claim of a volume."""
    (volume,) = [v for v in pod.spec["volumes"] if v["name"] == name]
    return dict(volume["persistentVolumeClaim"])


def test_the_token_is_a_file_of_the_secret_of_the_user() -> None:
    release = console_release(token={"existingSecret": "console-token", "key": "word"})
    (config,) = [v for v in pod_of(render(release), "console").spec["volumes"] if v["name"] == "config"]
    sources = [source["secret"] for source in config["projected"]["sources"] if "secret" in source]
    assert {"name": "console-token", "items": [{"key": "word", "path": "console/token"}]} in sources
    assert str(arguments_of(release).token_file) == "/etc/slipstream/console/token"


def test_no_upgrade_changes_the_token_because_it_is_in_no_object_of_the_release() -> None:
    releases = [
        console_release(),
        console_release(allowControl=True, resources={"limits": {"memory": "8Gi"}}),
    ]
    assert [label(d) for release in releases for d in of_kind(render(release), "Secret")] == []


def test_visitors_can_only_look_unless_the_value_allows_control() -> None:
    assert arguments_of(console_release()).read_only
    assert not arguments_of(console_release(allowControl=True)).read_only


def test_the_console_answers_to_the_names_of_its_ingress() -> None:
    names = ["runs.example.com", "runs"]
    ingress = {"enabled": True, "className": "private", "tlsSecret": "runs-tls"}
    release = console_release(hostNames=names, ingress=ingress, peers=[{"podSelector": {}}])
    assert arguments_of(release).host_name == names
    (made,) = of_kind(render(release), "Ingress")
    assert [rule["host"] for rule in made["spec"]["rules"]] == names
    assert made["spec"]["tls"] == [{"hosts": names, "secretName": "runs-tls"}]
    backends = [path["backend"] for rule in made["spec"]["rules"] for path in rule["http"]["paths"]]
    assert backends == [{"service": {"name": NAME, "port": {"name": "http"}}}] * 2
    service = by_name(render(release), "Service")[NAME]
    assert [port["name"] for port in service["spec"]["ports"]] == ["http"]


def test_without_its_value_there_is_no_ingress() -> None:
    assert of_kind(render(console_release(hostNames=["runs.example.com"])), "Ingress") == []


def test_beside_the_learner_the_console_is_scheduled_to_its_node() -> None:
    gpu = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    own = {"key": "example.com/cpu", "operator": "Exists"}
    anti = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    documents = render(
        console_release({"tolerations": [gpu]}, besideLearner=True, tolerations=[own], affinity=anti)
    )
    spec = pod_of(documents, "console").spec
    assert spec["tolerations"] == [gpu, own]
    assert spec["affinity"].items() >= anti.items()
    (term,) = spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    chosen = {pod.component for pod in pod_templates(documents) if selects(term["labelSelector"], pod.labels)}
    assert chosen == {"learner"}


def test_elsewhere_the_console_has_no_affinity_of_the_chart() -> None:
    spec = pod_of(render(console_release()), "console").spec
    assert not {"affinity", "tolerations"} & spec.keys()


def test_the_console_has_the_identity_of_its_role_and_no_account_of_the_cluster() -> None:
    documents = render(console_release({}, allowControl=True))
    spec = pod_of(documents, "console").spec
    assert spec["automountServiceAccountToken"] is False
    (config,) = [v for v in spec["volumes"] if v["name"] == "config"]
    assert "tls-console" in [s["secret"]["name"] for s in config["projected"]["sources"] if "secret" in s]
    roles = [pod.component for pod in pod_templates(documents) if "tls-console" in str(pod.spec["volumes"])]
    assert roles == ["console"]


def test_without_scaling_the_console_has_no_right_and_reaches_no_api_server() -> None:
    documents = render(console_release(allowControl=True))
    assert arguments_of(console_release(allowControl=True)).release is None
    assert of_kind(documents, "Role") == of_kind(documents, "RoleBinding") == []
    assert 443 not in ports_of(by_name(documents, "NetworkPolicy")[NAME])


def test_a_console_that_scales_has_the_rights_of_its_code_and_names_what_it_changes() -> None:
    release = console_release(allowControl=True, allowScaling=True)
    documents = render(release)
    assert arguments_of(release).release == release.name
    (role,), (binding,) = of_kind(documents, "Role"), of_kind(documents, "RoleBinding")
    rights = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert rights <= RIGHTS
    changed = {
        name
        for rule in role["rules"]
        if "patch" in rule["verbs"] or "configmaps" in rule["resources"]
        for name in rule["resourceNames"]
    }
    pools = {label(d) for d in of_kind(documents, "Deployment") if "-rollout-" in d["metadata"]["name"]}
    assert {f"Deployment/{name}" for name in changed} == {*pools, f"Deployment/{FULLNAME}-paused"}
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (account,) = binding["subjects"]
    spec = pod_of(documents, "console").spec
    assert (account["name"], account["namespace"]) == (spec["serviceAccountName"], release.namespace)
    mounted = {p.component for p in pod_templates(documents) if p.spec["automountServiceAccountToken"]}
    assert mounted == {"console"}


def test_a_console_that_scales_reaches_the_api_server_at_its_addresses() -> None:
    server = {"ports": [6443], "peers": [{"ipBlock": {"cidr": "10.0.0.1/32"}}]}
    documents = render(console_release(allowControl=True, allowScaling=True, apiServer=server))
    rule = by_name(documents, "NetworkPolicy")[NAME]["spec"]["egress"][-1]
    assert rule == {"ports": [{"protocol": "TCP", "port": 6443}], "to": server["peers"]}
    anywhere = render(console_release(allowControl=True, allowScaling=True))
    assert ports_of(by_name(anywhere, "NetworkPolicy")[NAME]) >= {443, 6443}


def ports_of(policy: Document) -> set[int]:
    """Return the ports of all egress rules of a NetworkPolicy."""
    return {port["port"] for rule in policy["spec"]["egress"] for port in rule.get("ports", [])}


def test_cert_manager_makes_the_certificate_once_for_the_console_and_for_http_clients() -> None:
    http = {"http": {"enabled": True, "peers": [{"podSelector": {}}]}}
    for verifier in ({}, http):
        release = small_release(
            learner=SHARED, console=CONSOLE, verifier=verifier, tls={"mode": "certManager"}
        )
        made = [d for d in of_kind(render(release), "Certificate") if d["metadata"]["name"] == NAME]
        assert [d["spec"]["uris"] for d in made] == [["spiffe://demo.training.slipstream/console"]]


def test_the_pod_has_the_settings_of_the_console() -> None:
    settings = {key: ALL[key] for key in ALL if key not in ("resourceClaims", "resources")}
    pod = pod_of(render(console_release(**settings)), "console")
    assert (pod.spec["schedulerName"], pod.spec["dnsPolicy"]) == ("kai-scheduler", "None")
    assert [each["name"] for each in pod.all_containers] == ["first", "console", "shipper"]
    assert pod.containers[0]["envFrom"] == ALL["envFrom"]
    assert ALL["labels"].items() <= pod.owner["metadata"]["labels"].items()
    assert not ALL["labels"].items() & pod.labels.items()


def test_an_image_without_torch_is_not_the_default() -> None:
    image = pod_of(render(console_release()), "console").containers[0]["image"]
    assert image == "slipstream/cpu:0.1.0"


def test_the_notes_open_the_console_and_show_its_token() -> None:
    text = notes(console_release(hostNames=["runs.example.com"]))
    assert f"kubectl port-forward --namespace training service/{NAME} 8080:8080" in text
    assert "kubectl get secret --namespace training console-token" in text
    assert "go-template='{{ index .data \"token\" | base64decode }}'" in text
    assert "runs.example.com" not in text
    ingress = {"enabled": True}
    opened = console_release(hostNames=["runs.example.com"], ingress=ingress, peers=[{"podSelector": {}}])
    assert "https://runs.example.com" in notes(opened)


@pytest.mark.parametrize(
    "values", [{"learner": {"checkpoints": {"existingClaim": "mine"}}}, {"learner": SHARED}]
)
def test_a_claim_that_several_nodes_may_mount_is_not_refused(values: dict[str, Any]) -> None:
    assert pod_of(render(small_release(**values, console=CONSOLE)), "console")
