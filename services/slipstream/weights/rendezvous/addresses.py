"""The address on which this machine listens, and the address from which it reaches a peer."""

import errno
import ipaddress
import socket


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket on exactly this address.

    Errors: ValueError for a wildcard address such as 0.0.0.0, OSError for an address of another machine.
    """
    family, address = _resolve(host)
    if ipaddress.ip_address(address).is_unspecified:
        raise ValueError(
            f"weights.host {host!r} stands for all addresses, and rollouts need one that they can reach; "
            "set SLIPSTREAM_WEIGHTS_HOST to the pod's address"
        )
    try:
        return socket.create_server((address, port), family=family)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        raise OSError(
            error.errno,
            f"weights.host {host} is no address of this machine; set SLIPSTREAM_WEIGHTS_HOST to the pod's",
        ) from error


def own_address(peer_host: str, peer_port: int) -> str:
    """Return the address of this machine from which the peer is reached, without sending a packet."""
    family, _ = _resolve(peer_host)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((peer_host, peer_port))
        address: str = probe.getsockname()[0]
    return address


def _resolve(host: str) -> tuple[socket.AddressFamily, str]:
    """Return an address of the host, IPv4 if it has one. Errors: OSError for an unknown name."""
    rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    family, _, _, _, address = min(rows, key=lambda row: row[0] != socket.AF_INET)
    return family, str(address[0])
