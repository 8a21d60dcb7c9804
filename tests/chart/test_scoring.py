"""The verifier as a rendered pod with every kind of reward that needs resources, called over mTLS."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart.kubelet.machine import Machine
from chart.kubelet.network import IPV4, inside_network
from chart.manifests import COMPONENT_LABEL, Document, by_name
from chart.metrics_page import gauge
from chart.release_small import FULLNAME, NAMESPACE, RUN, small_release, user_secrets
from chart.rendering import render
from render import Release
from verifier.chat_server import Chat, Reply, chat_server
from verifier.tiny_models import a_model

pytestmark = pytest.mark.chart
PORT = 8443
NODE_ADDRESS = IPV4.address(0)
START_SECONDS, CALL_SECONDS = 120.0, 60
BREVITY = """\
from slipstream.records import Prompt
from slipstream.verifier.reward import Answer


def brevity(prompt: Prompt, answer: Answer, *, limit: int) -> float:
    return max(0.0, 1 - answer.tokens / limit)
"""
PROGRAM = """\
```python
import os

SECRETS = ["/run/secrets/judge/key", "/code/mine.py", "/etc/slipstream/tls/tls.key"]
SECRETS += ["/models/tiny/config.json", "/etc/slipstream/run.yaml"]


def readable(path):
    try:
        return bool(open(path).read())
    except OSError:
        return False


def double(n):
    return 0 if os.environ or any(map(readable, SECRETS)) else 2 * n
```"""
"""A program that is right only if the sandbox shows it none of the files and variables of the pod."""
GROUP = {
    "prompt": {"text": "double a number", "fields": {"tests": "assert double(21) == 42"}},
    "answers": [{"text": PROGRAM, "tokens": 25}, {"text": "no program", "tokens": 100}],
}


def scoring_release(judge_url: str) -> Release:
    """Return the small release with the four kinds of rewards that need resources, and with HTTP."""
    run = yaml.safe_load(RUN)
    run["rewards"] = [
        {"name": "code_tests"},
        {"name": "brevity", "kind": "custom", "function": "mine:brevity", "arguments": {"limit": 100}},
        {"name": "quality", "kind": "reward_model", "path": "/models/tiny", "probability": True},
        {
            "name": "judge",
            "url": judge_url,
            "model": "m",
            "plaintext": True,
            "api_key_file": "/run/secrets/judge/key",
        },
    ]
    run["evaluation"] = {"reward": "code_tests"}
    verifier = {
        "replicas": 1,
        "image": {"repository": "slipstream/verifier"},
        "models": {"existingClaim": "reward-models"},
        "http": {"enabled": True, "port": PORT, "peers": [{"podSelector": {}}]},
        "judge": {"existingSecret": "judge-keys", "peers": [{"ipBlock": {"cidr": f"{NODE_ADDRESS}/32"}}]},
        "code": {"mine.py": BREVITY},
    }
    return small_release(run={"config": yaml.safe_dump(run)}, verifier=verifier)


def of_the_verifier(documents: list[Document]) -> list[Document]:
    """Return the objects of the verifier, and the configuration."""
    config = by_name(documents, "ConfigMap")[f"{FULLNAME}-config"]
    return [config, *(d for d in documents if d["metadata"]["labels"].get(COMPONENT_LABEL) == "verifier")]


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("certs")
    return folder


@pytest.fixture(scope="module")
def served(certs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, Chat]]:
    secrets = user_secrets(certs)
    node: Path = tmp_path_factory.mktemp("machine") / "node"
    a_model(node / "claims" / "reward-models" / "tiny", "sequence")
    with Machine(node, namespace=NAMESPACE) as machine:
        for name, data in {**secrets, "judge-keys": {"key": b"open sesame\n"}}.items():
            machine.add_secret(name, data)
        with (
            inside_network(machine.network.node),
            chat_server(lambda _: Reply(text="SCORE: 5"), host=NODE_ADDRESS) as chat,
        ):
            machine.apply(of_the_verifier(render(scoring_release(chat.url))))
            machine.wait_until_ready(seconds=START_SECONDS)
            yield machine, chat


def curl(machine: Machine, identity: Path | None, body: Any, *, authority: Path) -> tuple[int, str]:
    """Call the verifier by name with a role's certificate; return status (0 without a response) and body."""
    (pod,) = machine.of_component("verifier")
    name = f"{FULLNAME}-verifier"
    words = ["nsenter", f"--net=/proc/{machine.network.node}/ns/net", "curl", "--silent", "--show-error"]
    words += ["--noproxy", "*", "--resolve", f"{name}:{PORT}:{pod.facts.pod_ip}", "--cacert", str(authority)]
    if identity is not None:
        words += ["--cert", str(identity / "tls.crt"), "--key", str(identity / "tls.key")]
    words += ["--json", json.dumps(body), "--write-out", "\n%{http_code}", f"https://{name}:{PORT}/v1/score"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=CALL_SECONDS)
    text, _, status = done.stdout.rpartition("\n")
    return int(status), text or done.stderr


def test_a_caller_with_the_certificate_of_a_console_gets_all_scores(
    served: tuple[Machine, Chat], certs: Path
) -> None:
    machine, chat = served
    status, text = curl(machine, certs / "console", GROUP, authority=certs / "ca" / "ca.crt")
    assert status == 200, text
    scores = [{part["name"]: part["value"] for part in vector} for vector in json.loads(text)["vectors"]]
    assert [0 < vector.pop("quality") < 1 for vector in scores] == [True, True]
    assert scores == [
        {"code_tests": 1.0, "brevity": 0.75, "judge": 0.5},
        {"code_tests": 0.0, "brevity": 0.0, "judge": 0.5},
    ]
    assert set(chat.keys) == {"Bearer open sesame"}


def test_a_role_that_may_not_score_is_refused_with_the_permitted_roles(
    served: tuple[Machine, Chat], certs: Path
) -> None:
    status, text = curl(served[0], certs / "learner", GROUP, authority=certs / "ca" / "ca.crt")
    assert (status, "a learner may not score" in text) == (403, True), text


def test_without_a_certificate_the_tls_handshake_fails(served: tuple[Machine, Chat], certs: Path) -> None:
    status, text = curl(served[0], None, GROUP, authority=certs / "ca" / "ca.crt")
    assert (status, text[:9] in ("curl: (52", "curl: (56")) == (0, True), text  # an empty reply or a reset


def test_programs_have_all_isolation_layers_that_a_restricted_pod_allows(
    served: tuple[Machine, Chat],
) -> None:
    machine, _ = served
    (pod,) = machine.of_component("verifier")
    layers = ("rlimits", "seccomp", "landlock", "user")
    assert {layer: gauge(machine, pod, "isolation_layer", layer=layer) for layer in layers} == dict.fromkeys(
        layers, 1
    )
