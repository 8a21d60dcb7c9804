"""deploy/compose.yaml agrees with the images, the configuration and the pods."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from images.dockerfile import read
from slipstream.config import apply_environment, load_config

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
RUN, CLUSTER = "/etc/slipstream/run.yaml", "/etc/slipstream/cluster.yaml"
SERVED = ("replay", "verifier", "teacher", "learner", "rollout")
PODS = (*SERVED, "actor")
EACH_POD = pytest.mark.parametrize("pod", PODS)
EACH_SERVER = pytest.mark.parametrize("pod", SERVED)


def services(*files: str) -> dict[str, Any]:
    """Return the merged services of the files; a key of a later file replaces that of an earlier one."""
    merged: dict[str, Any] = {}
    for file in files or ("compose.yaml",):
        for name, service in yaml.safe_load((DEPLOY / file).read_text(encoding="utf-8"))["services"].items():
            merged[name] = {**merged.get(name, {}), **service}
    return merged


def words(service: dict[str, Any]) -> str:
    return " ".join([*service.get("entrypoint", []), *service["command"]])


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Return the host path of each mount by its path in the container, with the defaults of variables."""
    filled = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", volume) for volume in service.get("volumes", [])]
    return {volume.split(":")[1]: volume.split(":")[0] for volume in filled}


@EACH_POD
def test_every_service_starts_its_pod_with_the_files_of_the_run_and_of_the_machine(pod):
    command = words(services()[pod])
    assert (
        f"slipstream.{pod} --config /etc/slipstream/run.yaml --config /etc/slipstream/cluster.yaml" in command
    )
    assert {RUN, CLUSTER} <= set(mounts(services()[pod]))


@EACH_SERVER
def test_every_pod_reads_its_configuration_and_listens_at_the_address_that_others_call(pod):
    config = load_config([ROOT / "examples/addition.yaml", DEPLOY / "compose/cluster.yaml"])
    own = apply_environment(config, services()[pod].get("environment", {}))
    address = getattr(own, pod).address
    assert address.startswith("0.0.0.0:")
    if pod != "rollout":  # actors ask replay for the addresses of rollouts
        assert getattr(config, pod).address == f"{pod}:{address.rpartition(':')[2]}"


@EACH_POD
@pytest.mark.parametrize(
    "files", [("compose.yaml",), ("compose.yaml", "compose.gpu.yaml")], ids=["cpu", "gpu"]
)
def test_every_image_is_built_from_a_dockerfile_that_has_the_pods_ports(pod, files):
    service = services(*files)[pod]
    file = ROOT / service["build"]["dockerfile"]
    assert service["image"] == f"slipstream/{file.stem}:${{SLIPSTREAM_TAG:-0.1.0}}"
    config = apply_environment(load_config(DEPLOY / "compose/cluster.yaml"), service.get("environment", {}))
    ports = {str(config.telemetry.port)}
    if pod in SERVED:
        ports.add(getattr(config, pod).address.rpartition(":")[2])
    assert ports <= set(read(file)[-1].last("EXPOSE").rest.split())


def test_every_file_that_the_configuration_names_is_mounted():
    config = load_config(DEPLOY / "compose/cluster.yaml")
    for pod in PODS:
        assert mounts(services()[pod])["/etc/slipstream/tls"] == f"./compose/state/certs/{pod}"
    assert str(config.rpc.tls.key.parent) == "/etc/slipstream/tls"
    assert str(config.replay.redis_password_file) in mounts(services()["replay"])
    for pod in ("learner", "rollout", "actor"):
        assert str(config.model.path.parent) in mounts(services()[pod])
    assert str(config.teacher.path.parent) in mounts(services()["teacher"])
    assert str(config.run_dir.parent) in mounts(services()["learner"])


def test_every_mounted_file_is_in_the_repository_or_made_by_the_preparation(tmp_path):
    made = prepared(tmp_path)
    for name, service in services("compose.yaml").items():
        for inside, outside in mounts(service).items():
            if outside.startswith("./compose/state/certs/"):
                assert "certs compose/state/certs --san redis=redis" in (made / "asked").read_text()
            elif outside.startswith("./compose/state/"):
                assert (made / outside).exists(), f"{name}: {outside}"
            else:
                assert (DEPLOY / outside).exists(), f"{name}: {outside} at {inside}"


def prepared(folder: Path) -> Path:
    """Return a copy of deploy/ after prepare.sh, with a stub of `slipstream` that records its arguments."""
    deploy = folder / "deploy"
    shutil.copytree(DEPLOY / "compose", deploy / "compose", ignore=shutil.ignore_patterns("state"))
    slipstream = folder / "slipstream"
    slipstream.write_text(f'#!/bin/sh\necho "$@" >>{deploy / "asked"}\n')
    slipstream.chmod(0o755)
    for _ in range(2):
        subprocess.run(
            ["bash", deploy / "compose/prepare.sh"],
            env={**os.environ, "SLIPSTREAM": str(slipstream)},
            check=True,
        )
    return deploy


def test_a_second_preparation_keeps_the_passwords_and_only_the_owner_can_read_them(tmp_path):
    first = prepared(tmp_path)
    secret = first / "compose/state/secrets/redis-password"
    before = secret.read_text()
    subprocess.run(
        ["bash", first / "compose/prepare.sh"], env={**os.environ, "SLIPSTREAM": "true"}, check=True
    )
    assert secret.read_text() == before
    assert len(before.strip()) == 48
    assert secret.stat().st_mode & 0o077 == 0
    assert (first / ".env").read_text() == f"SLIPSTREAM_USER={os.getuid()}:{os.getgid()}\n"


def test_a_teacher_is_started_only_with_its_profile_and_before_the_learner():
    profiles = {name: service["profiles"] for name, service in services().items() if "profiles" in service}
    assert profiles["teacher"] == ["distillation"]
    assert not set(PODS[:2] + PODS[3:]) & set(profiles)
    waits = services()["learner"]["depends_on"]["teacher"]
    assert waits == {"condition": "service_healthy", "required": False}


def test_with_gpus_each_pod_that_computes_has_its_own_gpu():
    pods = services("compose.gpu.yaml")
    devices = [
        device
        for pod in ("learner", "rollout", "teacher")
        for device in pods[pod]["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
    ]
    assert [device.partition(":-")[2] for device in devices] == ["0}", "1}", "2}"]
    assert [name for name in re.findall(r"SLIPSTREAM_\w+", str(devices))] == re.findall(
        r"`(SLIPSTREAM_\w+_GPU)`", (DEPLOY / "compose/README.md").read_text(encoding="utf-8")
    )


def test_the_page_about_single_pods_has_each_of_them_and_each_address_of_a_service():
    page = (DEPLOY / "README.md").read_text(encoding="utf-8")
    for pod in PODS:
        assert f"`python -m slipstream.{pod} --config run.yaml" in page
    for pod in SERVED:
        assert f"`SLIPSTREAM_{pod.upper()}_ADDRESS`" in page
        assert f"`{pod}.address`" in page


def test_every_container_is_read_only_and_without_privileges():
    for name, service in services("compose.yaml", "compose.gpu.yaml").items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["user"].startswith("${SLIPSTREAM_USER:?"), name
        assert re.search(r":v?\d+\.\d+\.\d+$|:\$\{SLIPSTREAM_TAG:-\d+\.\d+\.\d+\}$", service["image"]), name


def test_only_the_ports_of_prometheus_and_grafana_are_published_and_only_on_loopback():
    published = {name: service["ports"] for name, service in services().items() if "ports" in service}
    assert set(published) == {"prometheus", "grafana"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_the_name_that_actors_expect_is_in_the_certificate_of_a_rollout():
    """`slipstream certs` puts the role into each certificate."""
    config = load_config(DEPLOY / "compose/cluster.yaml")
    assert config.rollout.server_name == "rollout"


def test_actors_stop_before_the_pods_that_they_call():
    """Compose stops a service before those that it depends on."""
    assert {"replay", "verifier", "rollout"} <= set(services()["actor"]["depends_on"])


def test_only_replay_shares_a_network_with_redis():
    assert {name for name, service in services().items() if "redis" in service.get("networks", [])} == {
        "redis",
        "replay",
    }
    assert services()["redis"]["networks"] == ["redis"]


def test_prometheus_finds_every_pod_at_the_port_of_its_metrics():
    (job,) = yaml.safe_load((DEPLOY / "compose/prometheus.yaml").read_text())["scrape_configs"]
    (discovery,) = job["dns_sd_configs"]
    assert tuple(discovery["names"]) == PODS
    assert discovery["port"] == load_config(DEPLOY / "compose/cluster.yaml").telemetry.port
    for pod in PODS:
        assert str(discovery["port"]) in " ".join(services()[pod]["healthcheck"]["test"])


@pytest.mark.chart
def test_promtool_accepts_the_scrape_configuration(tmp_path):
    text = (
        (DEPLOY / "compose/prometheus.yaml")
        .read_text()
        .replace("/etc/prometheus/rules", str(ROOT / "charts/slipstream/files/rules"))
    )
    (tmp_path / "prometheus.yaml").write_text(text)
    done = subprocess.run(
        ["promtool", "check", "config", tmp_path / "prometheus.yaml"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
