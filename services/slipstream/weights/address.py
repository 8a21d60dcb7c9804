"""Addresses of this machine: the one to listen on, and the one from which a peer is reached."""

import errno
import ipaddress
import socket


def listen(host: str, port: int) -> socket.socket:
    """A socket on exactly this address.

    Errors: ValueError for one that stands for all interfaces, OSError for one that is not this machine's.
    """
    family, address = _resolve(host)
    if ipaddress.ip_address(address).is_unspecified:
        raise ValueError(
            f"weights.host {host!r} stands for all addresses, and workers need one that they can reach; "
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
    """The address of this machine from which the peer is reached. Sends nothing."""
    family, _ = _resolve(peer_host)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((peer_host, peer_port))
        address: str = probe.getsockname()[0]
    return address


def _resolve(host: str) -> tuple[socket.AddressFamily, str]:
    """An address of the host, IPv4 where it has one. Errors: OSError for a name that is not known."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    family, _, _, _, address = min(found, key=lambda row: row[0] != socket.AF_INET)
    return family, str(address[0])
