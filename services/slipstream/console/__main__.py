"""The program of the console.

    python -m slipstream.console RUN_DIR [--host HOST] [--port PORT] [--host-name NAME ...]
                                         [--token-file FILE] [--ready-file FILE] [--parent PID]

Exit status: 0 after SIGTERM or SIGINT; 2 for a wrong directory or option.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from slipstream.config.addresses import is_loopback
from slipstream.console.access import Access, Guard
from slipstream.console.app import make_app
from slipstream.console.catalogue import NoRun, open_catalogue
from slipstream.processes.lifetime.parent_death import die_with_parent
from slipstream.rpc.ready_file import ReadyFile
from slipstream.telemetry.listening import listen

USAGE_ERROR = 2
LONGEST_GRACE_SECONDS = 2
NICENESS = 10
"""Beside a run the console leaves the cores to it."""
LEAST_TOKEN = 16
"""Characters."""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal; return the exit status."""
    arguments = _parser().parse_args(argv)
    if arguments.parent is not None:
        die_with_parent(arguments.parent)
        os.nice(NICENESS)
    try:
        catalogue = open_catalogue(arguments.run_dir)
        access = _access(arguments)
        listening = listen(arguments.host, arguments.port)
    except (NoRun, ValueError, OSError) as error:
        print(f"slipstream: console: {error}", file=sys.stderr)
        return USAGE_ERROR
    host, port = listening.getsockname()[:2]
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    settings = uvicorn.Config(
        Guard(make_app(catalogue), access),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=LONGEST_GRACE_SECONDS,
    )
    _announce(arguments.ready_file, address)
    uvicorn.Server(settings).run(sockets=[listening])
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="slipstream console", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--host-name", action="append", default=[])
    parser.add_argument("--token-file", type=Path)
    parser.add_argument("--ready-file", type=Path)
    parser.add_argument("--parent", type=int)
    return parser


def _access(arguments: argparse.Namespace) -> Access:
    """Errors: ValueError for an address that others reach, without a token; OSError."""
    token = arguments.token_file.read_text(encoding="utf-8").strip() if arguments.token_file else None
    if token is None and not is_loopback(f"{arguments.host}:0"):
        raise ValueError(
            f"--host {arguments.host} can be reached from other machines: give a --token-file, a file with a "
            "secret that visitors have to enter"
        )
    if token is not None and len(token) < LEAST_TOKEN:
        raise ValueError(f"{arguments.token_file}: the token has fewer than {LEAST_TOKEN} characters")
    return Access(token=token, hosts=frozenset(arguments.host_name))


def _announce(file: Path | None, address: str) -> None:
    """Print the address, and write the ready file."""
    print(f"console http://{address}/", flush=True)
    if file is not None:
        ReadyFile(address=address, metrics_port=0, pid=os.getpid()).write(file)


if __name__ == "__main__":
    sys.exit(main())
