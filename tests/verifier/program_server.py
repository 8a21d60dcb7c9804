"""A verifier that runs programs, as a process: `program_server.py PORT` runs until it is killed."""

import asyncio
import sys
from functools import partial

from slipstream.config import RpcConfig, VerifierConfig
from slipstream.rpc.server import start_server
from slipstream.v1.verifier_pb2_grpc import add_VerifierServicer_to_server
from slipstream.verifier.programs import ProgramLimits
from slipstream.verifier.servicer import VerifierServicer
from verifier.scoring import Bench


async def main(port: str) -> None:
    bench = Bench(config=VerifierConfig(workers=1), programs=ProgramLimits(seconds=10.0, memory_mib=256))
    register = partial(add_VerifierServicer_to_server, VerifierServicer(bench.scorer, bench.programs))
    async with bench:
        server = await start_server(f"127.0.0.1:{port}", register, config=RpcConfig())
        print(server.address, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
