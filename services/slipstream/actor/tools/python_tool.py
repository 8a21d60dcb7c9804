"""The tool `python`: runs a program of the policy in the sandbox of the verifier."""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

import grpc

from slipstream.actor.chat import template, tools
from slipstream.config import RunConfig
from slipstream.config.environments import PythonTool
from slipstream.records import Prompt
from slipstream.rpc.channel import call_with_retries
from slipstream.rpc.errors import Unreachable
from slipstream.sandbox.notebook import MAX_CHARACTERS
from slipstream.telemetry.logs import Log
from slipstream.v1 import verifier_pb2 as pb
from slipstream.v1.verifier_pb2_grpc import VerifierStub

NO_OUTPUT = "(no output)"
UNAVAILABLE = "[the program could not be run, and not by its own fault; the tool may work again later]"
OUTCOMES: Mapping[int, tools.Outcome] = {pb.PROGRAM_END_FINISHED: "ok", pb.PROGRAM_END_LATE: "timeout"}
"""End of a program → outcome of the call; of any other end it is `failed`."""
REASONS: Mapping[int, str] = {
    pb.PROGRAM_END_EXITED: "the program ended its process",
    pb.PROGRAM_END_OUTPUT: "the program was ended: it wrote more output than it may",
    pb.PROGRAM_END_DISK: "the program was ended: it wrote more files than it may",
    pb.PROGRAM_END_THREADS: "the program was ended: it started more threads than it may",
}
TRIES_SECONDS = 2
"""Time for all tries of a call, as a multiple of the deadline of one: a try that is lost at its end is
repeated."""


class ProgramRunner(Protocol):
    """Runs programs somewhere else."""

    async def run(self, request: pb.RunProgramRequest) -> pb.RunProgramResponse:
        """Return how a program ended. Errors: Unreachable."""


def python_definition(config: PythonTool) -> dict[str, Any]:
    """Return the tool as chat templates take it."""
    state = (
        "Names that earlier calls defined are still there."
        if config.state
        else "Each call starts anew: nothing of earlier calls is left."
    )
    return {
        "type": "function",
        "function": {
            "name": config.name,
            "description": "Run a Python program, and return what it prints and the value of its last "
            f"expression. {state} There is no network. A call may take {config.seconds:g} seconds.",
            "parameters": {
                "type": "object",
                "properties": {"code": {"type": "string", "description": "The program."}},
                "required": ["code"],
            },
        },
    }


class ProgramTool:
    """The tool `python`."""

    def __init__(self, config: PythonTool, runner: ProgramRunner, *, log: Log) -> None:
        self.name = config.name
        self.schema: template.Tool = python_definition(config)
        self._config = config
        self._runner = runner
        self._log = log

    def for_episode(self, prompt: Prompt) -> "Notebook":
        """Return the tool for an episode, without any state."""
        return Notebook(self._config, self._runner, group=prompt.prompt_id, log=self._log)


class Notebook:
    """The tool `python` in one episode.

    Invariant: whatever the policy asks for, the answer is a text. With `state`, the programs that ran to
    their end, or to an exception, are the state: they run again before the next program. A program that was
    ended, or ended its process, leaves no state.
    """

    def __init__(self, config: PythonTool, runner: ProgramRunner, *, group: str, log: Log) -> None:
        """`group`: id of the prompt; the programs of different groups run in turn."""
        self._config = config
        self._runner = runner
        self._group = group
        self._log = log
        self._earlier: list[str] = []
        self._digests: list[str | None] = []
        """A digest of the first output of each earlier program; None after a difference was reported."""
        self._one_at_a_time = asyncio.Lock()

    async def answer(self, arguments: Mapping[str, Any]) -> tuple[tools.Outcome, str]:
        """Run a program, and return its output, or why there is none.

        `arguments`: {"code": text of the program}. A program that an exception ended has failed. Errors:
        grpc.aio.AioRpcError where the verifiers are set up in another way than this actor.
        """
        code = arguments.get("code")
        if not isinstance(code, str):
            return "arguments", "Error: the argument `code` is missing; it is the text of a Python program"
        async with self._one_at_a_time:
            if why := self._unusable(code):
                return "arguments", f"Error: {why}"
            try:
                response = await self._runner.run(self._request(code))
            except Unreachable as error:
                self._log.warning("tool failed", tool=self._config.name, error=str(error))
                return "unavailable", UNAVAILABLE
            return OUTCOMES.get(response.end, "failed"), self._text(code, response)

    def _unusable(self, code: str) -> str:
        if not code.isascii() and code != code.encode("utf-8", "replace").decode():
            return "the program has characters that are no valid Unicode"
        characters = sum(map(len, (code, *self._earlier)))
        if characters > MAX_CHARACTERS:
            together = " together with the earlier ones" if self._earlier else ""
            return f"the program{together} has {characters} characters; at most {MAX_CHARACTERS} can be run"
        return ""

    def _request(self, code: str) -> pb.RunProgramRequest:
        return pb.RunProgramRequest(
            code=code,
            earlier=self._earlier,
            seconds=self._config.seconds,
            memory_mib=self._config.memory_mib,
            group=self._group,
        )

    def _text(self, code: str, response: pb.RunProgramResponse) -> str:
        notes = [self._why_ended(response), *self._differences(response)]
        if self._config.state and response.digests:
            self._earlier.append(code)
            self._digests.append(response.digests[-1])
        lines = [*(f"[{note}]" for note in notes if note), response.output.rstrip("\n")]
        return "\n".join(filter(None, lines)) or NO_OUTPUT

    def _why_ended(self, response: pb.RunProgramResponse) -> str:
        if response.end == pb.PROGRAM_END_LATE:
            reason = f"the program was ended: it took more than {self._config.seconds:g} s"
            if self._earlier:
                reason += ", together with the earlier ones, which run again in each call"
        else:
            reason = REASONS.get(response.end, "")
        return f"{reason}; none of its names are kept" if reason and self._config.state else reason

    def _differences(self, response: pb.RunProgramResponse) -> list[str]:
        """Return a note, once, for each earlier program that printed something else than the first time."""
        notes = []
        for position, (first, again) in enumerate(zip(self._digests, response.digests, strict=False)):
            if first not in (None, again):
                notes.append(f"program {position + 1} printed something else when it ran again for this call")
                self._digests[position] = None
        return notes


class ProgramClient:
    """Repeats calls that a verifier did not answer: a program has no effect outside of its own process."""

    def __init__(self, channel: grpc.aio.Channel, config: RunConfig) -> None:
        """The deadline of a try is the program's own and `verifier.timeout_seconds`, to wait for its turn."""
        self._stub = VerifierStub(channel)
        self._timeout = config.verifier.timeout_seconds

    async def run(self, request: pb.RunProgramRequest) -> pb.RunProgramResponse:
        """Return how the program ended.

        Errors: Unreachable if no verifier answers in time; grpc.aio.AioRpcError for a status that no later
        call will change.
        """
        timeout = self._timeout + request.seconds
        return await call_with_retries(
            "run a program",
            lambda: self._stub.RunProgram(request, timeout=timeout),
            give_up_after=TRIES_SECONDS * timeout,
        )
