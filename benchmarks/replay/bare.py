"""A server that only echoes each group, to measure gRPC alone.

python -m benchmarks.replay.bare READY_FILE
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import grpc
from slipstream.config import RpcConfig
from slipstream.rpc.server import start_server

ECHO = "/bare.Replay/Echo"


async def echo(request: bytes, context: Any) -> bytes:
    """Return the same bytes."""
    return request


def register(server: grpc.aio.Server) -> None:
    """Serve `echo` without any serializer."""
    service, method = ECHO[1:].split("/")
    handlers = {method: grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))


async def main(ready: Path) -> None:
    """Serve until killed."""
    server = await start_server("127.0.0.1:0", register, config=RpcConfig())
    await server.set_serving(True)
    await asyncio.to_thread(ready.write_text, json.dumps({"address": server.address}))
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
