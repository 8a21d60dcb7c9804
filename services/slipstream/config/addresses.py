"""Which addresses can be reached from this machine only."""

import ipaddress


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
