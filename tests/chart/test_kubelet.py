"""The tests' kubelet behaves like a real one; the tests of running releases rely on it."""

import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chart.kubelet.environment import expand
from chart.kubelet.machine import Machine
from chart.manifests import Document

IMAGE = "redis:7"  # an image of Debian without an entrypoint
WAIT_SECONDS = 20.0


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with Machine(tmp_path, namespace="training") as made:
        yield made


def deployment(name: str, script: str, **more: Any) -> Document:
    """Return a Deployment of one container that runs a Python script as user 10001 with a read-only root."""
    context = {"runAsUser": 10001, "runAsGroup": 10001, "runAsNonRoot": True, "fsGroup": 10001}
    container = {
        "name": "main",
        "image": IMAGE,
        "command": ["/opt/slipstream/bin/python", "-c", textwrap.dedent(script)],
        "securityContext": {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False},
        **more.pop("container", {}),
    }
    spec = {"securityContext": context, "containers": [container], "terminationGracePeriodSeconds": 5, **more}
    labels = {"app.kubernetes.io/component": name}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {"kind": "Deployment", "metadata": {"name": name}, "spec": {"template": template}}


def job(name: str, script: str, **more: Any) -> Document:
    """Return a hook that runs a script to its end."""
    template = deployment(name, script, **more)["spec"]["template"]
    return {
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {"helm.sh/hook": "test"}, **template["metadata"]},
        "spec": template["spec"],
    }


def ran(machine: Machine, *documents: Document) -> str:
    """Run the only hook of the objects, and return its log; it must exit with 0."""
    (pod,) = machine.run_hooks(documents, event="test", seconds=WAIT_SECONDS).values()
    assert pod.exits == [0], (pod.problem, pod.log)
    return pod.log


def test_variables_are_expanded_as_in_kubernetes() -> None:
    assert expand("$(A)-$$(A)-$(B)-$A", {"A": "1"}) == "1-$(A)-$(B)-$A"


@pytest.mark.chart
def test_a_container_has_no_rights_and_a_read_only_root(machine: Machine) -> None:
    log = ran(
        machine,
        job(
            "nobody",
            """
            import os
            print(os.getuid(), os.getgid(), os.getgroups(), os.getpid(), os.uname().nodename)
            print([line for line in open("/proc/self/status") if line.startswith(("CapBnd", "NoNewPrivs"))])
            for path in ("/x", "/tmp/x", "/usr/x", "/opt/slipstream/x", "/etc/x"):
                try:
                    open(path, "w")
                    print("WROTE", path)
                except OSError:
                    pass
            """,
        ),
    )
    assert "10001 10001 [10001] 1 nobody" in log
    assert "CapBnd:\\t0000000000000000" in log
    assert "NoNewPrivs:\\t1" in log
    assert "WROTE" not in log


@pytest.mark.chart
def test_volumes_have_their_paths_contents_owners_and_modes(machine: Machine) -> None:
    machine.add_secret("given", {"tls.crt": b"certificate"})
    config = {"kind": "ConfigMap", "metadata": {"name": "config", "annotations": {"helm.sh/hook": "test"}}}
    volumes = [
        {"name": "config", "configMap": {"name": "config"}},
        {"name": "tls", "secret": {"secretName": "given", "defaultMode": 0o400}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": "models"}},
    ]
    mounts = [
        {"name": "config", "mountPath": "/etc/slipstream"},
        {"name": "tls", "mountPath": "/etc/slipstream/tls"},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "claim", "mountPath": "/models"},
        {"name": "config", "mountPath": "/one/run.yaml", "subPath": "run.yaml"},
    ]
    log = ran(
        machine,
        {**config, "data": {"run.yaml": "name: small"}},
        job(
            "mounts",
            """
            import os
            for path in ("/etc/slipstream/run.yaml", "/etc/slipstream/tls/tls.crt", "/one/run.yaml"):
                print(open(path).read())
            open("/tmp/x", "w"), open("/models/x", "w")
            try:
                open("/etc/slipstream/run.yaml", "w")
            except OSError as error:
                print(error.strerror)
            mode = os.stat("/etc/slipstream/tls/tls.crt").st_mode
            print(oct(mode), os.readlink("/etc/slipstream/run.yaml"))
            """,
            container={"volumeMounts": mounts},
            volumes=volumes,
        ),
    )
    assert log.split("\n")[:3] == ["name: small", "certificate", "name: small"]
    assert "Read-only file system" in log
    assert "0o100440 ..data/run.yaml" in log


@pytest.mark.chart
def test_a_service_resolves_to_its_ready_pods_only(machine: Machine) -> None:
    serve = """
        import http.server, os, time
        time.sleep(1)
        http.server.test(http.server.SimpleHTTPRequestHandler, port=9464, bind=os.environ["POD_IP"])
    """
    environment = [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    probe = {"readinessProbe": {"httpGet": {"path": "/etc/hosts", "port": 9464}}, "env": environment}
    selector = {"app.kubernetes.io/component": "api"}
    service = {"kind": "Service", "metadata": {"name": "api"}, "spec": {"selector": selector, "ports": []}}
    machine.apply([deployment("api", serve, container=probe), service])
    assert not any("api" in line for line in machine.names())
    machine.wait_until_ready(seconds=WAIT_SECONDS)
    asks = "import socket, time; time.sleep(1); print(socket.gethostbyname('api.training.svc'))"
    (api,) = machine.of_component("api")
    assert ran(machine, job("asks", asks)).strip() == api.facts.pod_ip


@pytest.mark.chart
def test_a_pod_that_ignores_sigterm_is_killed_after_its_grace_period(machine: Machine) -> None:
    deaf = """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("up", flush=True)
        time.sleep(99)
    """
    machine.apply([deployment("deaf", deaf, terminationGracePeriodSeconds=1)])
    wait_for_log(machine, "up")
    (pod,) = machine.of_component("deaf")
    machine.delete(pod.name, replace=False)
    assert pod.exits == [137]
    assert "did not end within its grace" in pod.problem


@pytest.mark.chart
def test_a_pod_that_handles_sigterm_exits_with_its_own_status(machine: Machine) -> None:
    polite = """
        import signal, sys
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
        print("up", flush=True)
        signal.pause()
    """
    machine.apply([deployment("polite", polite)])
    wait_for_log(machine, "up")
    (pod,) = machine.of_component("polite")
    machine.delete(pod.name, replace=False)
    assert pod.exits == [3]


@pytest.mark.chart
def test_a_container_that_dies_is_restarted_and_counted(machine: Machine) -> None:
    machine.apply([deployment("mortal", "import sys; print('up', flush=True); sys.exit(7)")])
    wait_for_log(machine, "up\nup")
    (pod,) = machine.of_component("mortal")
    assert pod.restarts >= 1
    assert pod.exits[0] == 7


@pytest.mark.chart
def test_a_container_whose_liveness_probe_fails_is_restarted(machine: Machine) -> None:
    probe = {"exec": {"command": ["test", "-e", "/nowhere"]}, "periodSeconds": 1, "failureThreshold": 1}
    ill = "import signal; print('up', flush=True); signal.signal(15, lambda *_: exit(0)); signal.pause()"
    machine.apply([deployment("ill", ill, container={"livenessProbe": probe})])
    wait_for_log(machine, "up\nup")


def wait_for_log(machine: Machine, text: str) -> None:
    """Wait until a pod has logged a text."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not any(text in pod.log for pod in machine.pods.values()):
        assert time.monotonic() < deadline, [(pod.problem, pod.log) for pod in machine.pods.values()]
        time.sleep(0.1)
