"""The init container that downloads the model, with its environment from the chart: behind a proxy, from a
mirror whose authority the values name. Also the notes of the chart about the model."""

import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

import numpy
import pytest
import yaml
from chart.kubelet.environment import Facts, Store, container_environment
from chart.manifests import Document, pod_templates
from chart.release_small import RUN, small_release
from chart.rendering import merge, render
from hub.server import Hub, serving
from render import EXAMPLES, Release, render_files
from rpc.mutual_tls import HOUR, LOCAL, an_authority
from safetensors.numpy import save_file

SECONDS = 120
FACTS = Facts(
    pod_name="a", namespace="b", pod_ip="", node_name="", node_ip="", metadata={}, service_account=""
)
PEERS = {"egress": {"huggingface": True, "peers": [{"ipBlock": {"cidr": "192.0.2.1/32"}}]}}
AUTHORITY = {"configMap": "authorities", "key": "bundle.pem"}


@dataclass
class Proxy:
    """An HTTP proxy with the method CONNECT, and its received requests."""

    address: str = ""
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy()

    class Tunnel(BaseRequestHandler):
        def handle(self) -> None:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += self.request.recv(1)
            made.requests.append(head.split(b"\r\n")[0].decode())
            host, _, port = head.split()[1].decode().rpartition(":")
            with socket.create_connection((host, int(port))) as other:
                self.request.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                back = threading.Thread(target=pipe, args=(other, self.request), daemon=True)
                back.start()
                pipe(self.request, other)
                back.join(5)

    with ThreadingTCPServer(("127.0.0.1", 0), Tunnel) as server:
        server.daemon_threads = True
        made.address = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield made
        server.shutdown()


def pipe(source: socket.socket, target: socket.socket) -> None:
    """Copy until the source ends."""
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[tuple[Hub, bytes]]:
    """Start a mirror with TLS and one model; yield it with the certificate of its authority."""
    model = tmp_path / "hub/models/org/tiny"
    model.mkdir(parents=True)
    save_file({"a": numpy.arange(1000, dtype=numpy.float32)}, model / "model.safetensors")
    (model / "config.json").write_text("{}")
    authority = an_authority()
    pair = authority.issue("learner", LOCAL, valid=HOUR)
    (tmp_path / "tls.crt").write_bytes(pair.certificate)
    (tmp_path / "tls.key").write_bytes(pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    with serving(tmp_path / "hub", tls=context) as hub:
        yield hub, authority.pair.certificate


def released(**download: Any) -> list[Document]:
    """Return the objects of a release that downloads its model with these settings."""
    source = {"repository": "org/tiny", "revision": "a" * 40, "authority": AUTHORITY, **download}
    run = RUN.replace("model: {tiny", "#").replace("warmup:", "#")
    model = {"mode": "download", "download": source}
    return render(small_release(run={"config": run}, model=model, network=PEERS))


def downloaded(
    documents: list[Document], directory: Path, authority: bytes, *, component: str = "learner"
) -> "subprocess.CompletedProcess[str]":
    """Run the init container of a component, with directories of this test in place of its mounts."""
    (pod,) = [pod for pod in pod_templates(documents) if pod.component == component]
    (container,) = [each for each in pod.spec["initContainers"] if each["name"] == "model"]
    (volume,) = [volume for volume in pod.spec["volumes"] if volume["name"] == "config"]
    maps = [source["configMap"] for source in volume["projected"]["sources"] if "configMap" in source]
    (authority_map,) = [each for each in maps if each["name"] == AUTHORITY["configMap"]]
    assert authority_map["items"] == [{"key": "bundle.pem", "path": "download/ca.crt"}]
    (directory / "ca.crt").write_bytes(authority)
    environment = container_environment(
        container, image={"PATH": os.environ["PATH"]}, facts=FACTS, store=Store(config_maps={}, secrets={})
    )
    assert environment["SSL_CERT_FILE"] == "/etc/slipstream/download/ca.crt"
    environment |= {
        "SSL_CERT_FILE": str(directory / "ca.crt"),
        "HOME": str(directory),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    assert container["command"][:4] == ["tini", "-g", "--", "python"]
    module, (repository, revision, path, *options) = container["command"][4:], container["args"]
    return subprocess.run(
        [sys.executable, *module, repository, revision, str(directory / Path(path).name), *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def test_the_model_is_downloaded_through_the_proxy_from_a_mirror_of_the_configured_authority(
    mirror: tuple[Hub, bytes], proxy: Proxy, tmp_path: Path
) -> None:
    hub, authority = mirror
    done = downloaded(released(endpoint=hub.address, proxy=proxy.address), tmp_path, authority)
    assert done.returncode == 0, done.stderr
    assert proxy.requests
    assert all(requests.startswith("CONNECT ") for requests in proxy.requests)
    assert len(list(tmp_path.glob("org--tiny-*/model.safetensors"))) == 1


def test_an_actor_downloads_no_weights(mirror: tuple[Hub, bytes], tmp_path: Path) -> None:
    hub, authority = mirror
    done = downloaded(released(endpoint=hub.address), tmp_path, authority, component="actor")
    assert done.returncode == 0, done.stderr
    (directory,) = tmp_path.glob("org--tiny-*/")
    assert [file.name for file in directory.glob("[!.]*")] == ["config.json"]


def test_a_host_of_no_proxy_is_called_directly(
    mirror: tuple[Hub, bytes], proxy: Proxy, tmp_path: Path
) -> None:
    hub, authority = mirror
    documents = released(endpoint=hub.address, proxy=proxy.address, noProxy="127.0.0.1,localhost")
    done = downloaded(documents, tmp_path, authority)
    assert done.returncode == 0, done.stderr
    assert proxy.requests == []


def test_a_mirror_of_another_authority_is_refused(mirror: tuple[Hub, bytes], tmp_path: Path) -> None:
    hub, _ = mirror
    done = downloaded(released(endpoint=hub.address), tmp_path, an_authority().pair.certificate)
    assert done.returncode == 1
    assert "is signed by no authority that this machine trusts" in done.stderr
    assert "model.download.authority" in done.stderr


def test_the_timeout_is_passed_to_the_library_of_the_hub(mirror: tuple[Hub, bytes]) -> None:
    hub, _ = mirror
    for pod in pod_templates(released(endpoint=hub.address, timeoutSeconds=77)):
        models = [each for each in pod.spec.get("initContainers") or [] if each["name"] == "model"]
        assert len(models) == (pod.component in ("learner", "rollout", "actor"))
        for container in models:
            environment = {each["name"]: each.get("value") for each in container["env"]}
            assert environment["HF_HUB_DOWNLOAD_TIMEOUT"] == "77"
            assert environment["HF_HUB_ETAG_TIMEOUT"] == "77"


def notes(name: str, **values: Any) -> str:
    """Return the notes of `helm install` for an example with more values merged over it."""
    example = yaml.safe_load((EXAMPLES / f"{name}-values.yaml").read_text(encoding="utf-8"))
    return render_files(Release(values=merge(example, values)))["NOTES.txt"]


def test_the_notes_say_how_many_pods_download_the_model() -> None:
    alone = {"cache": {"kind": "emptyDir"}}
    few = {"pools": [{"name": "default", "replicas": 3}]}
    assert "download" not in notes("private")
    assert "Up to 33 pods download the model" in notes("private", model=alone)
    assert "download" not in notes("private", model=alone, rollout=few)


def test_the_notes_warn_of_a_plaintext_redis() -> None:
    text = notes("private")
    assert "WARNING: redis.external.tls is false" in text
    assert "whoever reaches it may change the run's data" in text
    secret = {"external": {"existingSecret": "a"}}
    assert "the password of Redis, cross the" in " ".join(notes("private", redis=secret).split())
    assert "WARNING" not in notes("external-redis")
