"""Fetches the metrics pages of pods through port forwarding.

The API server's pod proxy cannot be used: it connects to the pod's address, which the default-deny
NetworkPolicies of the chart forbid. A forwarded port is opened by the kubelet inside the pod's network
namespace, to which NetworkPolicies do not apply.
"""

import http.client
import queue
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream.cluster.connect import Connection

READERS = 8
PAGE_SECONDS = 5.0
ALL_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A pod, and the port of its metrics page."""

    pod: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The text of a page, or the reason why there is none."""

    text: str = ""
    failure: str = ""


def read_pages(
    connection: Connection, targets: Sequence[Target], *, seconds: float = ALL_SECONDS
) -> Mapping[str, Answer]:
    """Return an answer for each pod, by pod name, within `seconds`. Raises no error."""
    waiting: queue.SimpleQueue[Target] = queue.SimpleQueue()
    answers: queue.SimpleQueue[tuple[str, Answer]] = queue.SimpleQueue()
    for target in targets:
        waiting.put(target)
    for _ in range(min(READERS, len(targets))):
        # Daemon threads, because the client's handshake has no deadline, and a thread that hangs cannot be
        # stopped.
        threading.Thread(target=_read_all, args=(connection, waiting, answers), daemon=True).start()
    pages = {target.pod: Answer(failure=f"no answer within {seconds:g} s") for target in targets}
    deadline = time.monotonic() + seconds
    for _ in targets:
        try:
            pod, answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        pages[pod] = answer
    return pages


def _read_all(
    connection: Connection,
    waiting: "queue.SimpleQueue[Target]",
    answers: "queue.SimpleQueue[tuple[str, Answer]]",
) -> None:
    while True:
        try:
            target = waiting.get_nowait()
        except queue.Empty:
            return
        answers.put((target.pod, _read(connection, target)))


def _read(connection: Connection, target: Target) -> Answer:
    from kubernetes.client import ApiClient, CoreV1Api
    from kubernetes.client.exceptions import ApiException
    from kubernetes.stream import portforward

    # Each thread needs its own client, because `portforward` replaces a method of the client while it runs.
    core = CoreV1Api(ApiClient(connection.configuration))
    try:
        forward = portforward(
            core.connect_get_namespaced_pod_portforward,
            target.pod,
            connection.namespace,
            ports=str(target.port),
        )
    except ApiException as error:
        return Answer(failure=_refusal(str(error.reason)))
    sock = forward.socket(target.port)
    sock.settimeout(PAGE_SECONDS)
    page = http.client.HTTPConnection("localhost")
    page.sock = sock
    try:
        page.request("GET", "/metrics", headers={"Connection": "close"})
        response = page.getresponse()
        text = response.read().decode("utf-8")
    except (OSError, http.client.HTTPException, UnicodeDecodeError) as error:
        reason = forward.error(target.port) or f"{type(error).__name__}: {error}"
        return Answer(failure=f"port {target.port}: {' '.join(reason.split())}")
    finally:
        page.close()
        forward.close()
    return Answer(text=text) if response.status == 200 else Answer(failure=f"/metrics says {response.status}")


def _refusal(reason: str) -> str:
    """Return why no port was forwarded, from the error message of the client's WebSocket."""
    status = re.search(r"Handshake status (\d+)", reason)
    if status and status[1] == "403":
        return "you may not port-forward (verbs get and create on pods/portforward)"
    return f"no port forwarding: {' '.join(reason.split('-+-+-')[0].split())}"
