"""The last ledger of a run, from a replay that closes its connections."""

import socket
import subprocess
import sys
import threading

SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
GOAWAY = b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + b"\x00\x00\x00\x00" + b"\x00\x00\x00\x02"
"""A GOAWAY frame of HTTP/2 with the error code 2."""
ASK = """
import asyncio, os, sys
from slipstream.cli.launch.ledger import read_ledger
from slipstream.config import RpcConfig
print(asyncio.run(read_ledger(sys.argv[1], RpcConfig())), "GRPC_VERBOSITY" in os.environ)
"""


def test_a_replay_that_closes_its_connections_gives_no_ledger_and_no_output() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1024)
                    connection.sendall(SETTINGS + GOAWAY)

        threading.Thread(target=refuse, daemon=True).start()
        command = [sys.executable, "-c", ASK, f"127.0.0.1:{server.getsockname()[1]}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("None False\n", "")
