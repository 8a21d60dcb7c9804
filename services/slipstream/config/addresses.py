"""Addresses as the configuration writes them, and which of them only this machine can reach."""

import ipaddress


def split_address(address: str) -> tuple[str, int]:
    """Host and port of host:port; an IPv6 host without its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def is_loopback(address: str) -> bool:
    """Whether host:port or unix:path can be reached from this machine only; a name other than localhost may
    be anybody's."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
