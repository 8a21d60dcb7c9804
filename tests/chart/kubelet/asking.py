"""Execute the probes of a container from the machine, as a kubelet does."""

import http.client
import socket
from collections.abc import Mapping
from typing import Any

from chart.kubelet.container import Container
from chart.kubelet.network import inside_network


def answer(
    probe: Mapping[str, Any], spec: Mapping[str, Any], container: Container, *, node: int, address: str
) -> str | None:
    """Return None if the probe succeeds, else the reason. `node` holds the machine's network.

    Errors: KeyError for a kind of probe that this kubelet does not support.
    """
    seconds = float(probe.get("timeoutSeconds", 1))
    if "exec" in probe:
        return container.run(probe["exec"]["command"], seconds=seconds)
    try:
        with inside_network(node):
            if "httpGet" in probe:
                request = probe["httpGet"]
                status, body = get(address, port_of(request["port"], spec), request["path"], seconds)
                return None if 200 <= status < 400 else f"{status}: {body}"
            port = port_of(probe["tcpSocket"]["port"], spec)
            socket.create_connection((address, port), seconds).close()
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    return None


def port_of(port: int | str, spec: Mapping[str, Any]) -> int:
    """Return the number of a port, which may be a name. Errors: KeyError for an unknown name."""
    if isinstance(port, int):
        return port
    return int({p["name"]: p["containerPort"] for p in spec["ports"]}[port])


def get(host: str, port: int, path: str, seconds: float) -> tuple[int, str]:
    """Return status and body of an HTTP GET. Errors: OSError and HTTPException."""
    connection = http.client.HTTPConnection(host, port, timeout=seconds)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    finally:
        connection.close()
