"""Addresses of the form host:port or unix:path, and whether other machines can reach them."""

import ipaddress


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of host:port; an IPv6 host loses its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach host:port or unix:path.

    Names are not resolved: of all names, only localhost counts as loopback.
    """
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
