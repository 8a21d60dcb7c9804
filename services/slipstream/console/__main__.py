"""The program of the console.

    python -m slipstream.console RUN_DIR [--host HOST] [--port PORT] [--host-name NAME ...]
                                         [--token-file FILE] [--ready-file FILE] [--parent PID]
                                         [--config FILE ...] [--read-only] [--release NAME]
                                         [--objective MODULE:FUNCTION ...]

With --config the console is a pod of a release: the files have the addresses of replay and learner and the
pod's own certificate, and RUN_DIR is the directory of the release's run, which need not exist yet.
With --release visitors may scale the rollouts of that Helm release, by the service account of the pod.
The loss lab of the page calls the functions of --objective, and no others but that of the run itself.

Exit status: 0 after SIGTERM or SIGINT; 2 for a wrong directory, option or configuration.
"""

import argparse
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from slipstream.algorithms.spec import CustomObjective
from slipstream.config import ConfigError, RunConfig, apply_environment, load_config
from slipstream.config.addresses import is_loopback
from slipstream.console.access import Access, Guard
from slipstream.console.app import make_app
from slipstream.console.catalogue import Catalogue, NoRun, expect_run, open_catalogue
from slipstream.console.scaling import Pools
from slipstream.processes.lifetime.parent_death import die_with_parent
from slipstream.rpc.ready_file import ReadyFile
from slipstream.rpc.security.startup import check_certificate
from slipstream.telemetry.listening import listen
from slipstream.telemetry.logs import Log
from slipstream.verifier.http.protocol import protocol

ROLE = "console"
USAGE_ERROR = 2
LONGEST_GRACE_SECONDS = 2
HEAD_SECONDS = 30.0
"""Longest time for the head of a request."""
MOST_CONNECTIONS = 256
NICENESS = 10
"""Beside a run the console leaves the cores to it."""
LEAST_TOKEN = 16
TOKEN = re.compile(r"[A-Za-z0-9\-._~+/=]+")
"""Characters."""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal; return the exit status."""
    arguments = parse_arguments(argv)
    if arguments.parent is not None:
        die_with_parent(arguments.parent)
        os.nice(NICENESS)
    try:
        pod = _pod_config(arguments.config)
        catalogue = _catalogue(arguments.run_dir, pod)
        for objective in arguments.objective:
            CustomObjective(function=objective)  # its name has the right form
        access = _access(arguments)
        listening = listen(arguments.host, arguments.port)
    except (ConfigError, NoRun, ValueError, OSError) as error:
        print(f"slipstream: console: {error}", file=sys.stderr)
        return USAGE_ERROR
    host, port = listening.getsockname()[:2]
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    pools = None if arguments.release is None else Pools(release=arguments.release)
    app = make_app(
        catalogue,
        pod=pod,
        config=arguments.config,
        read_only=arguments.read_only,
        pools=pools,
        objectives=arguments.objective,
    )
    settings = uvicorn.Config(
        Guard(app, access),
        http=protocol(
            head_seconds=HEAD_SECONDS, connections=MOST_CONNECTIONS, trust_domain=None, log=Log(pod=ROLE)
        ),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=LONGEST_GRACE_SECONDS,
    )
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises a signal again once it has stopped
        signal.signal(number, _leave)
    _announce(arguments.ready_file, address)
    uvicorn.Server(settings).run(sockets=[listening])
    return 0


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the program. Errors: SystemExit for an unknown one."""
    parser = argparse.ArgumentParser(prog="slipstream console", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--host-name", action="append", default=[])
    parser.add_argument("--token-file", type=Path)
    parser.add_argument("--ready-file", type=Path)
    parser.add_argument("--parent", type=int)
    parser.add_argument("--config", action="append", default=[], type=Path)
    parser.add_argument("--read-only", action="store_true")
    parser.add_argument("--release")
    parser.add_argument("--objective", action="append", default=[])
    return parser.parse_args(argv)


def _pod_config(files: Sequence[Path]) -> RunConfig | None:
    """Return the configuration of this pod; None without files. Errors: ConfigError."""
    if not files:
        return None
    config = apply_environment(load_config(files))
    check_certificate(ROLE, config.rpc)
    return config


def _catalogue(run_dir: Path, pod: RunConfig | None) -> Catalogue:
    """Errors: NoRun."""
    return open_catalogue(run_dir) if pod is None else expect_run(run_dir)


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
    if token is not None and not TOKEN.fullmatch(token):
        raise ValueError(
            f"{arguments.token_file}: a token has only letters, digits and the characters "
            "-._~+/=, because programs send it in a header"
        )
    return Access(token=token, hosts=frozenset(arguments.host_name))


def _leave(*_: object) -> None:
    raise SystemExit(0)


def _announce(file: Path | None, address: str) -> None:
    """Print the address, and write the ready file."""
    print(f"console http://{address}/", flush=True)
    if file is not None:
        ReadyFile(address=address, metrics_port=0, pid=os.getpid()).write(file)


if __name__ == "__main__":
    sys.exit(main())
