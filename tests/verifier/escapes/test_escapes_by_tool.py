"""Hostile programs in the tool `python`: none succeeds, and none changes the state of the sandbox."""

import asyncio
import io
import os
from collections.abc import Callable, Mapping
from functools import partial

import pytest
from sandbox.hostile_programs import calls, interpreter
from sandbox.processes import stable_descendants
from slipstream.actor.tools.python_tool import UNAVAILABLE, Notebook, ProgramClient
from slipstream.config import RpcConfig, RunConfig, VerifierConfig
from slipstream.config.environments import PythonTool
from slipstream.rpc.channel import open_channel
from slipstream.rpc.server import start_server
from slipstream.telemetry.logs import Log
from slipstream.v1.verifier_pb2_grpc import add_VerifierServicer_to_server
from slipstream.verifier.programs import ProgramLimits
from slipstream.verifier.servicer import VerifierServicer
from verifier.escapes.programs import CALLED, PRINTED
from verifier.escapes.test_escapes import (
    MIB,
    after_calls,
    after_imports,
    batched,
    resident,
    resources,
    settled,
    unchanged,
    with_resources,
)
from verifier.scoring import Bench

pytestmark = pytest.mark.usefixtures("outer_isolation")
RPC = RpcConfig()
AT_ONCE = 8
SHOW = "\nprint('returned', repr(answer()))"
SUCCEEDED = "returned 42"
Write = Callable[..., str]


@pytest.mark.parametrize(
    ("programs", "write", "show", "seconds"),
    [
        pytest.param(CALLED, with_resources, SHOW, 0.25, id="called"),
        pytest.param(calls.CALLS, after_calls, SHOW, 0.25, id="kernel"),
        pytest.param(interpreter.INTERPRETED, after_imports, "\nanswer()", 0.25, id="interpreter"),
        pytest.param(interpreter.STAYING, after_imports, "\nanswer()", 0.06, id="staying"),
        pytest.param({**PRINTED, **interpreter.WRONG_OUTPUT}, unchanged, "", 0.25, id="printed"),
    ],
)
def test_no_hostile_program_succeeds_in_the_tool(
    programs: Mapping[str, str], write: Write, show: str, seconds: float
) -> None:
    """Run each program in one call, and then as an earlier cell of a second call."""
    tool = PythonTool(state=True, seconds=seconds, memory_mib=256)
    assert asyncio.run(escaped(programs, write, show, tool)) == []


async def escaped(programs: Mapping[str, str], write: Write, show: str, config: PythonTool) -> list[str]:
    """Return the programs that succeeded, had no result, or left processes."""
    successes: list[str] = []
    limits = ProgramLimits(seconds=config.seconds, memory_mib=config.memory_mib)
    bench = Bench(config=VerifierConfig(workers=2), programs=limits)
    register = partial(add_VerifierServicer_to_server, VerifierServicer(bench.scorer, bench.programs))
    server = await start_server("127.0.0.1:0", register, config=RPC)
    with resources() as targets:
        async with bench, open_channel(server.address, RPC) as channel:
            client = ProgramClient(channel, RunConfig())
            before = await stable_descendants()
            memory = resident(before)
            for names in batched(programs, AT_ONCE):
                texts = await asyncio.gather(
                    *(played(client, config, write(programs[name], **targets) + show) for name in names)
                )
                successes += [
                    f"{name}: {text}"
                    for name, text in zip(names, texts, strict=True)
                    if SUCCEEDED in text or UNAVAILABLE in text
                ]
                if not await settled(before):
                    successes.append(f"of {names} processes stayed")
            assert await played(client, config, "6 * 7") == "42\n'second'", (
                "the sandbox does not work any more"
            )
            assert resident(before) - memory < 16 * MIB
            assert bench.sample("sandbox_servers_lost_total") == 0
            assert os.listdir(str(targets["outside_folder"])) == ["unix"]
    await server.stop(grace=0)
    return successes


async def played(client: ProgramClient, config: PythonTool, code: str) -> str:
    """Return the tool's responses to a program and to a second program of the same episode."""
    tool = Notebook(config, client, group="p", log=Log(pod="actor", stream=io.StringIO()))
    texts = [(await tool.answer({"code": each}))[1] for each in (code, "'second'")]
    return "\n".join(texts)
