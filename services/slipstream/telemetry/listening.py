"""A listening socket for IPv4 and IPv6."""

import socket

BACKLOG = 128
"""Maximum number of connections that wait to be accepted."""


def listen(host: str, port: int, *, backlog: int = BACKLOG) -> socket.socket:
    """Return a socket that listens on host:port; port 0 takes a free one.

    `::` means all addresses of the machine, IPv4 included; without IPv6 in the kernel it means 0.0.0.0.
    Errors: OSError when the port is in use, or the host is not this machine's.
    """
    host = host.strip("[]")
    if host == "::" and socket.has_dualstack_ipv6():
        return socket.create_server(
            (host, port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog
        )
    if host == "::":
        host = "0.0.0.0"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=backlog)
