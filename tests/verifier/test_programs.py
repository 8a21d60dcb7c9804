"""RunProgram over real gRPC: limits, the admission queue, metrics, and failures of the sandbox."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
import pytest
from sandbox.processes import descendants
from slipstream.config import RpcConfig, VerifierConfig
from slipstream.rpc.channel import open_channel
from slipstream.rpc.server import start_server
from slipstream.v1 import verifier_pb2 as pb
from slipstream.v1.verifier_pb2_grpc import VerifierStub, add_VerifierServicer_to_server
from slipstream.verifier.programs import ProgramLimits
from slipstream.verifier.servicer import VerifierServicer
from verifier.scoring import Bench

pytestmark = pytest.mark.usefixtures("outer_isolation")
RPC = RpcConfig()
LIMITS = ProgramLimits(seconds=5.0, memory_mib=256)
Client = Callable[[pb.RunProgramRequest], Awaitable[pb.RunProgramResponse]]


def bench(limits: ProgramLimits | None = LIMITS, **verifier: int) -> Bench:
    return Bench(config=VerifierConfig(**{"workers": 1, **verifier}), programs=limits)


@asynccontextmanager
async def serve(bench: Bench) -> AsyncIterator[Client]:
    """Start a gRPC server with the bench, and yield a client."""
    register = partial(add_VerifierServicer_to_server, VerifierServicer(bench.scorer, bench.programs))
    server = await start_server("127.0.0.1:0", register, config=RPC)
    async with bench, open_channel(server.address, RPC) as channel:
        stub = VerifierStub(channel)  # type: ignore[no-untyped-call, unused-ignore]
        yield partial(stub.RunProgram, timeout=60)
    await server.stop(grace=0)


def program(code: str, *earlier: str, **settings: Any) -> pb.RunProgramRequest:
    return pb.RunProgramRequest(
        **{"code": code, "earlier": earlier, "seconds": 5.0, "memory_mib": 256, **settings}
    )


def ran(bench: Bench, *programs: pb.RunProgramRequest) -> list[pb.RunProgramResponse]:
    async def play() -> list[pb.RunProgramResponse]:
        async with serve(bench) as run:
            return [await run(each) for each in programs]

    return asyncio.run(play())


async def admitted(server: Bench) -> None:
    """Wait until a program has a slot of the queue."""
    for _ in range(1000):
        if server.sample("answers_waiting"):
            return
        await asyncio.sleep(0.01)
    pytest.fail("no program was admitted")


@pytest.mark.parametrize(
    ("code", "end", "output"),
    [
        ("print(1)\n2", "FINISHED", "1\n2\n"),
        ("exit(3)", "FINISHED", ""),
        ("import os\nprint(1)\nos._exit(0)", "EXITED", "1\n"),
        ("import os\nos.abort()", "EXITED", ""),
        ("print(1)\nwhile True: pass", "LATE", "1\n"),
        ("with open('f', 'w') as f:\n while True: f.write('x' * 4096)", "RAISED", None),
        ("for i in range(9):\n open(str(i), 'w').write('x' * 4_000_000)\n", "DISK", None),
        ("while True: print('x' * 1000)", "OUTPUT", None),
    ],
)
def test_the_response_has_the_end_of_the_program(code: str, end: str, output: str | None) -> None:
    seconds = 1.0 if end == "LATE" else 5.0
    (response,) = ran(bench(), program(code, seconds=seconds))
    assert pb.ProgramEnd.Name(response.end) == f"PROGRAM_END_{end}"
    if output is not None:
        assert response.output == output


def test_a_program_runs_after_its_earlier_cells_and_each_has_a_digest() -> None:
    (response,) = ran(bench(), program("x + 1", "x = 1\nprint('dropped')", "1 / 0"))
    assert (response.output, len(response.digests), response.end) == ("2\n", 3, pb.PROGRAM_END_FINISHED)


def test_a_forged_value_is_not_used_as_the_state() -> None:
    forge = "import os\nos.write(3, {!r})\nos._exit(0)"
    forged = [
        b'{"digests": ["\\ud800"], "raised": ""}',
        b'{"digests": [1], "raised": ""}',
        b'{"digests": 7}',
        b"[[]]",
        b"[" * 5000,
    ]
    responses = ran(bench(), *(program(forge.format(value)) for value in forged))
    assert {(response.end, *response.digests) for response in responses} == {(pb.PROGRAM_END_EXITED,)}


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (program("1", seconds=6.0), "a deadline of 6 s; the longest of the verifier's configuration is 5 s"),
        (program("1", seconds=0.0), "a deadline of 0 s"),
        (program("1", seconds=float("nan")), "a deadline of nan s"),
        (program("1", memory_mib=512), "512 MiB; the most of the verifier's configuration are 256"),
        (program("1", memory_mib=-1), "-1 MiB"),
        (program("1", "#" * 65_536), "65537 characters of code; at most 65536"),
    ],
)
def test_a_request_beyond_the_limits_is_refused(request_: pb.RunProgramRequest, reason: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=reason) as caught:
        ran(bench(), request_)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_without_the_tool_in_the_run_the_verifier_has_no_sandbox() -> None:
    server = bench(None)
    with pytest.raises(grpc.aio.AioRpcError, match="no environment of this verifier's run has the tool"):
        ran(server, program("1"))
    assert server.sample("sandbox_servers_lost_total") is None


def test_a_program_has_a_slot_of_the_queue_and_is_refused_while_it_is_full() -> None:
    server = bench(queue=1)

    async def play() -> grpc.aio.AioRpcError:
        async with serve(server) as run:
            slow = asyncio.ensure_future(run(program("import time; time.sleep(1.5)")))
            await admitted(server)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await run(program("1"))
            await slow
            assert server.sample("answers_waiting") == 0
            return refused.value

    error = asyncio.run(play())
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "verifier.queue is 1" in (error.details() or "")


def test_programs_are_counted_by_their_end_and_are_no_scores() -> None:
    server = bench()
    assert server.sample("programs_total", end="late") == 0
    ran(server, program("1"), program("1 / 0"), program("2"))
    assert [server.sample("programs_total", end=end) for end in ("finished", "raised")] == [2, 1]
    assert server.sample("program_seconds_count") == 3
    assert not server.sample("score_seconds_count")


def test_a_sandbox_that_is_lost_is_unavailable_and_the_next_program_runs() -> None:
    server = bench()

    async def play() -> grpc.aio.AioRpcError:
        async with serve(server) as run:
            hanging = asyncio.ensure_future(run(program("while True: pass")))
            await admitted(server)
            await asyncio.sleep(0.2)
            for pid in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError):  # the end of a parent ends its children
                    os.kill(pid, signal.SIGKILL)
            with pytest.raises(grpc.aio.AioRpcError) as lost:
                await hanging
            assert (await run(program("1"))).output == "1\n"
            return lost.value

    assert asyncio.run(play()).code() is grpc.StatusCode.UNAVAILABLE
