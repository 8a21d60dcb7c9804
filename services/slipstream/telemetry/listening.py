"""A socket to listen on, for either family of addresses."""

import socket

WAITING = 128
"""Connections that may wait to be accepted."""


def listen(host: str, port: int, *, backlog: int = WAITING) -> socket.socket:
    """A socket on host:port; port 0 takes a free one.

    `::` stands for all addresses of the machine, IPv4 included, and for 0.0.0.0 where the kernel has no IPv6.
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
