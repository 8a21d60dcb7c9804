"""A verifier that scores without reading the answers, to measure gRPC alone.

python -m benchmarks.verifier.bare READY_FILE
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from slipstream.config import RpcConfig
from slipstream.rpc.server import start_server
from slipstream.v1 import types_pb2 as types
from slipstream.v1 import verifier_pb2 as pb
from slipstream.v1.verifier_pb2_grpc import VerifierServicer, add_VerifierServicer_to_server


class Bare(VerifierServicer):
    """Scores 1 and 0 in turns."""

    async def Score(self, request: pb.ScoreRequest, context: Any) -> pb.ScoreResponse:
        """Return a vector for each answer."""
        vectors = [
            pb.RewardVector(
                rewards=[types.Reward(name="bare", value=1.0 - place % 2, outcome=types.OUTCOME_SCORE)]
            )
            for place in range(len(request.answers))
        ]
        return pb.ScoreResponse(vectors=vectors)


async def main(ready: Path) -> None:
    """Serve until killed."""
    server = await start_server(
        "127.0.0.1:0", lambda s: add_VerifierServicer_to_server(Bare(), s), config=RpcConfig()
    )
    await server.set_serving(True)
    await asyncio.to_thread(ready.write_text, json.dumps({"address": server.address}))
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
