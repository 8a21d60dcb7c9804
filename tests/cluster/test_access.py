"""A command that cannot reach the cluster or its release says in one line why, and what to do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster.conftest import Command
from cluster.fake_kubernetes import FakeKubernetes, kubeconfig
from cluster.objects import PODS, release
from slipstream.cli.__main__ import main
from slipstream.cluster.connect import IN_CLUSTER, connect
from slipstream.cluster.errors import ClusterUsageError

Output = pytest.CaptureFixture[str]


def one_line(capsys: Output) -> str:
    """Return the text of stderr, which must be one line."""
    line = capsys.readouterr().err
    assert line.startswith("slipstream: cluster: ")
    assert line.count("\n") == 1, line
    return line


def test_a_wrong_context_lists_the_contexts(command: Command, capsys: Output) -> None:
    assert command("status", "--context", "prod") == 2
    assert "no context 'prod' in the kubeconfig; it has lab, nowhere" in one_line(capsys)


def test_an_error_names_the_server_that_does_not_listen(command: Command, capsys: Output) -> None:
    assert command("status", "--context", "nowhere") == 1
    line = one_line(capsys)
    assert "the API server http://127.0.0.1:1 (context nowhere) does not answer" in line
    assert "Connection refused" in line


def test_a_missing_kubeconfig_is_an_error(capsys: Output) -> None:
    assert main(["cluster", "status", "--kubeconfig", "/nowhere/kubeconfig"]) == 2
    assert "/nowhere/kubeconfig: no such kubeconfig file" in one_line(capsys)


@pytest.mark.parametrize("text", ["", "[1, 2]", "{", "contexts: 5", "kind: Config\ncontexts: []\n"])
def test_a_malformed_kubeconfig_is_an_error(tmp_path: Path, capsys: Output, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text, encoding="utf-8")
    assert main(["cluster", "status", "--kubeconfig", str(path)]) == 2
    assert "not a usable kubeconfig" in one_line(capsys)


def test_without_a_kubeconfig_and_outside_of_a_pod_the_command_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubernetes.config.KUBE_CONFIG_DEFAULT_LOCATION", "/nowhere/config")
    with pytest.raises(ClusterUsageError, match=r"no kubeconfig was found .* name one by --kubeconfig FILE"):
        connect()
    with pytest.raises(ClusterUsageError, match="--context lab: no kubeconfig was found"):
        connect(context="lab")


def test_inside_a_pod_the_pods_service_account_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("token", "abc"), ("ca.crt", "certificate"), ("namespace", "team\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr("kubernetes.config.KUBE_CONFIG_DEFAULT_LOCATION", "/nowhere/config")
    monkeypatch.setattr("kubernetes.config.incluster_config.SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr("kubernetes.config.incluster_config.SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setattr("slipstream.cluster.connect.OWN_NAMESPACE", tmp_path / "namespace")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    connection = connect()
    assert (connection.namespace, connection.context) == ("team", IN_CLUSTER)
    assert connection.configuration.host == "https://10.0.0.1:443"


def test_expired_credentials_are_an_error(cluster: FakeKubernetes, tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "expired"
    path.write_text(kubeconfig(cluster, token="old"), encoding="utf-8")
    assert main(["cluster", "status", "--kubeconfig", str(path)]) == 2
    assert "does not accept the credentials of context lab: log in again (Unauthorized)" in one_line(capsys)


@pytest.mark.parametrize("page", ["<html>\nlog in\n</html>", "", "{}", "[]", '{"items": null}'])
def test_a_response_that_is_not_a_list_is_an_error(
    cluster: FakeKubernetes, command: Command, capsys: Output, page: str
) -> None:
    cluster.page = page
    assert command("status") == 2
    assert "answers, but not with a list of deployments: is it an API server" in one_line(capsys)


def test_the_failure_of_a_credential_plugin_is_an_error(
    cluster: FakeKubernetes, tmp_path: Path, capsys: Output
) -> None:
    path, tree = tmp_path / "plugin", json.loads(kubeconfig(cluster))
    script = "echo expired >&2; echo log in again >&2; exit 3"
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script]}
    tree["users"][0]["user"] = {"exec": plugin}
    path.write_text(json.dumps(tree), encoding="utf-8")
    assert main(["cluster", "status", "--kubeconfig", str(path)]) == 2
    assert "no credentials for context lab: exec: process returned 3. expired log in" in one_line(capsys)


def test_a_server_address_without_a_scheme_is_an_error(
    cluster: FakeKubernetes, tmp_path: Path, capsys: Output
) -> None:
    path, tree = tmp_path / "bare", json.loads(kubeconfig(cluster))
    tree["clusters"][0]["cluster"]["server"] = "127.0.0.1:1"
    path.write_text(json.dumps(tree), encoding="utf-8")
    assert main(["cluster", "status", "--kubeconfig", str(path)]) == 2
    assert "the server of context lab is '127.0.0.1:1', and no https:// address" in one_line(capsys)


@pytest.mark.parametrize(
    ("right", "arguments", "message"),
    [
        (("", "pods", "list"), ("status",), "you may not list pods in namespace team"),
        (("apps", "deployments", "list"), ("status",), "you may not list deployments"),
        (
            ("apps", "deployments/scale", "patch"),
            ("scale", "rollout/steady", "1"),
            "not patch deployments/scale",
        ),
        (("keda.sh", "scaledobjects", "patch"), ("pause",), "you may not patch scaledobjects"),
        (("", "pods/log", "get"), ("logs", "learner"), "you may not get pods/log"),
        (("", "configmaps", "get"), ("resume",), "you may not get configmaps"),
    ],
)
def test_an_error_names_the_missing_right_and_the_role_that_grants_it(
    cluster: FakeKubernetes,
    command: Command,
    capsys: Output,
    right: tuple[str, str, str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    assert cluster.allowed is not None
    cluster.allowed.remove(right)
    assert command(*arguments) == 2
    line = one_line(capsys)
    assert message in line
    assert "cluster.rbac.create" in line


def test_a_missing_release_is_an_error_that_lists_the_releases_of_the_namespace(
    command: Command, capsys: Output
) -> None:
    assert command("status", "--release", "run9") == 2
    assert "no release 'run9' in namespace team; it has run1" in one_line(capsys)


def test_a_namespace_with_several_releases_needs_the_name_of_one(
    cluster: FakeKubernetes, command: Command, capsys: Output
) -> None:
    cluster.objects["deployments"] += release(instance="run2")["deployments"]
    assert command("status") == 2
    assert "several releases in namespace team; choose --release run1 or run2" in one_line(capsys)
    assert command("status", "--release", "run1") == 0


def test_without_a_release_in_the_namespace_the_error_lists_others_if_rights_allow(
    cluster: FakeKubernetes, command: Command, capsys: Output
) -> None:
    assert command("status", "-n", "other") == 2
    assert "in namespace other; is --namespace or --context another one?" in one_line(capsys)
    cluster.allowed = None
    assert command("status", "-n", "other") == 2
    assert "no Slipstream release in namespace other; found run1 in team" in one_line(capsys)


def test_an_error_of_the_api_server_is_quoted(
    cluster: FakeKubernetes, command: Command, capsys: Output
) -> None:
    cluster.patches_before_crash = 0
    assert command("scale", "rollout/steady", "1") == 1
    assert "patch deployments/scale: the API server answered 500: etcd has no leader" in one_line(capsys)


def test_logs_end_without_an_error_when_the_reader_closes_the_pipe(
    cluster: FakeKubernetes, command: Command, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.logs = {PODS["learner"][0]: [("2026-05-01T10:00:00Z", "x" * 1000)] * 100}
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as pipe:
        monkeypatch.setattr("sys.stdout", pipe)
        assert command("logs") == 0
    assert capsys.readouterr().err == ""


def test_without_the_extra_cluster_the_command_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes.client", None)
    assert main(["cluster", "status"]) == 2
    assert (
        "needs the extra `cluster`, which is not installed: pip install '.[cluster]' in a clone of Slipstream"
        in one_line(capsys)
    )


def test_help_imports_neither_kubernetes_nor_grpc() -> None:
    code = (
        "import sys, json\nfrom slipstream.cli.__main__ import main\n"
        "try:\n    main(['cluster', 'logs', '--help'])\nexcept SystemExit:\n    pass\n"
        "print(json.dumps([name for name in ('kubernetes', 'grpc', 'pydantic') if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []
