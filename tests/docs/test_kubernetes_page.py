"""docs/kubernetes.md: its values render, and its commands exist."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart.policies.pod_security import pods_are_restricted
from slipstream.config import RunConfig
from slipstream.rpc.security.identity import ROLES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")
RUN = "model: {path: /anywhere}\ndata: {kind: file, path: /data/train.jsonl}\n"
DISTILLING = f"{RUN}algorithm: {{distillation: {{}}}}\nteacher: {{path: /models/teacher}}\n"
FIRST, TRIAL = "helm install first", "helm install trial"


def blocks(language: str) -> list[str]:
    """Return the fenced blocks of a language; blocks of commands have the language ""."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    return [text for name, text in fences if name == language]


def commands(start: str) -> list[str]:
    """Return every command of the page that begins with `start`, with its continuation lines."""
    lines = [line for block in blocks("") for line in block.replace("\\\n", " ").splitlines()]
    inline = [code for code in re.findall(r"`([^`\n]+)`", PAGE) if " " in code]
    return [command.strip() for command in (*lines, *inline) if command.strip().startswith(start)]


def values_with(key: str) -> dict[str, Any]:
    """Return the only block of values that contains the text `key`."""
    (block,) = [block for block in blocks("yaml") if key in block]
    values: dict[str, Any] = yaml.safe_load(block)
    return values


def rendered(values: dict[str, Any], run: str) -> list[dict[str, Any]]:
    from helm_python import Chart

    chart = Chart.load(ROOT / "charts/slipstream")
    release_values = {**values, "run": {"config": run}}
    chart.validate_schema(release_values)
    files = chart.render(release_values, name="first", namespace="slipstream")
    documents = [yaml.safe_load_all(text) for path, text in files.items() if path.endswith(".yaml")]
    return [document for stream in documents for document in stream if document]


def named(documents: list[dict[str, Any]], kind: str) -> set[str]:
    return {document["metadata"]["name"] for document in documents if document["kind"] == kind}


@pytest.mark.chart
def test_the_values_of_the_first_release_render():
    documents = rendered(values_with("registry: registry.example.com"), RUN)
    assert named(documents, "ScaledObject") == {"first-slipstream-rollout-default"}
    assert named(documents, "StatefulSet") == {"first-slipstream-learner", "first-slipstream-redis"}
    assert "first-slipstream-learner-0" in "".join(commands("kubectl cp"))


@pytest.mark.chart
def test_the_values_of_the_trial_render_with_the_example():
    documents = rendered(values_with("slipstream/cpu"), (ROOT / "examples/addition.yaml").read_text())
    learners = [
        d
        for d in documents
        if d["metadata"]["name"] == "first-slipstream-learner" and d["kind"] == "StatefulSet"
    ]
    assert "nvidia.com/gpu" not in yaml.safe_dump(learners)


@pytest.mark.chart
@pytest.mark.parametrize("key", ["mode: secrets", "lifecycle: spot"])
def test_every_further_block_of_values_renders_over_the_first(key):
    assert rendered({**values_with("registry: registry.example.com"), **values_with(key)}, RUN)


def test_the_pod_that_fills_the_claims_is_admitted_and_fills_those_of_the_first_release():
    (block,) = [block for block in blocks("yaml") if "kind: Pod" in block]
    *claims, pod = yaml.safe_load_all(block)
    assert list(pods_are_restricted([*claims, pod])) == []
    first = values_with("registry: registry.example.com")
    used = {first["model"]["volume"]["existingClaim"], first["data"]["existingClaim"]}
    assert {claim["metadata"]["name"] for claim in claims} == used
    assert {v["persistentVolumeClaim"]["claimName"] for v in pod["spec"]["volumes"]} == used
    downloads = "".join(commands("kubectl exec"))
    assert f"/models/{first['model']['volume']['directory']}" in downloads


@pytest.mark.chart
def test_the_certificates_are_for_the_names_and_the_trust_domain_of_the_release(tmp_path):
    values = {**values_with("registry: registry.example.com"), **values_with("mode: secrets")}
    values |= {"teacher": {"models": {"existingClaim": "models"}}}
    (config,) = [d for d in rendered(values, DISTILLING) if "cluster.yaml" in d.get("data", ())]
    cluster = yaml.safe_load(config["data"]["cluster.yaml"])
    certs, teacher = commands("slipstream certs certs")
    for role in ("learner", "replay", "verifier", "teacher"):
        assert f"{role}={cluster[role]['address'].partition(':')[0]}" in certs
    assert f"teacher={cluster['teacher']['address'].partition(':')[0]}" in teacher
    assert cluster["replay"]["redis_url"].split("//")[1].partition(":")[0] in certs
    for command in (certs, teacher):
        assert f"--trust-domain {cluster['rpc']['tls']['trust_domain']}" in command
        done = subprocess.run(slipstream(command), cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_the_loop_that_certs_prints_is_that_of_the_page(tmp_path):
    (certs, _) = commands("slipstream certs certs")
    done = subprocess.run(slipstream(certs), cwd=tmp_path, capture_output=True, text=True)
    _, heading, loop = done.stdout.partition("as Secrets, new or renewed:\n")
    assert heading, done.stderr
    assert loop in blocks("")
    assert PAGE.count(loop) == 2


def test_for_restricted_v2_the_page_names_the_values_to_leave_out_and_the_peers():
    openshift = yaml.safe_load((ROOT / "charts/slipstream/ci/openshift-values.yaml").read_text("utf-8"))
    (bullet,) = re.findall(r"^- \*OpenShift\*.*?(?=^- )", PAGE, flags=re.MULTILINE | re.DOTALL)
    peers = {name: openshift["network"][name]["peers"] for name in ("dns", "prometheus")}
    for name, (peer, *_) in peers.items():
        assert f"`network.{name}.peers`" in bullet
        assert f"`{peer['namespaceSelector']['matchLabels']['kubernetes.io/metadata.name']}`" in bullet
    (fill,) = [block for block in blocks("yaml") if "kind: Pod" in block]
    (_, pod) = fill.split("kind: Pod")
    (advice,) = re.findall(r"On OpenShift leave out the pod's (.*?), which", PAGE)
    assert re.findall(r"`(\w+)`", advice) == [
        k for k in openshift["podSecurityContext"] if f"{k}: 10001" in pod
    ]


def test_each_loop_over_roles_creates_every_secret_that_the_values_name():
    secrets = values_with("mode: secrets")["tls"]["secrets"]
    assert set(secrets) == {*ROLES} - {"console"}
    assert secrets == {role: f"first-{role}-tls" for role in secrets}
    loops = re.findall(r"^for role in (.*); do$", PAGE, flags=re.MULTILINE)
    assert [set(roles.split()) for roles in loops] == [set(secrets)] * 2


@pytest.mark.chart
def test_the_values_of_a_teacher_render_and_have_the_bound_that_the_page_names():
    values = values_with("they share the work")
    values["teacher"]["autoscaling"] = {"enabled": True}
    documents = rendered({**values_with("registry: registry.example.com"), **values}, DISTILLING)
    (scaled,) = [d for d in documents if d["kind"] == "ScaledObject" and "-teacher" in d["metadata"]["name"]]
    section = PAGE[PAGE.index("### A teacher") : PAGE.index("## 6.")]
    each = scaled["spec"]["triggers"][0]["metadata"]["threshold"]
    config = RunConfig()
    assert f"{config.teacher.requests * config.rollout.group_size} by default" in section
    assert f"`targetCompletions`, {each}." in section
    assert scaled["spec"]["maxReplicaCount"] == 4
    assert "more than four pods" in section


@pytest.mark.chart
@pytest.mark.parametrize("command", sorted(set(commands("slipstream cluster"))))
def test_every_cluster_command_of_the_page_exists(command, tmp_path):
    missing = ["--kubeconfig", str(tmp_path / "missing")]
    done = subprocess.run([*slipstream(command), *missing], capture_output=True, text=True)
    assert "usage:" not in done.stderr
    assert "missing" in done.stderr


def slipstream(command: str) -> list[str]:
    return [sys.executable, "-m", "slipstream.cli", *shlex.split(command)[1:]]


def test_every_file_that_a_command_names_exists():
    for path in re.findall(r"(?:--file |bash |charts/|examples/|docker/)[\w./$-]+", "\n".join(blocks(""))):
        name = path.split(" ")[-1].replace("$image", "services")
        assert (ROOT / name).exists() or name == "charts/slipstream", name


def test_every_link_of_the_page_is_to_a_file_or_a_known_page():
    for link in re.findall(r"\]\(([^)#]+)\)", PAGE):
        if not link.startswith("https://"):
            assert (ROOT / "docs" / link).exists(), link
