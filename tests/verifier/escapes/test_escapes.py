"""No hostile program is rewarded, and none changes the state of the sandbox."""

import asyncio
import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from sandbox.hostile_programs import calls, interpreter
from sandbox.processes import descendants, stable_descendants
from slipstream.config import VerifierConfig
from slipstream.config.rewards import CodeTestsConfig
from slipstream.records import Outcome, Prompt
from slipstream.sandbox import sandbox
from slipstream.verifier.reward import Answer
from verifier.escapes.programs import CALLED, PRINTED, SHARED
from verifier.scoring import Bench, answer

pytestmark = pytest.mark.usefixtures("outer_isolation")
DEADLINE_SECONDS = 0.25
SHORT_SECONDS = 0.06
AT_ONCE = 8
TESTS = {"call": [{"call": "answer", "args": [], "expected": 42}], "print": [{"input": "", "output": "42\n"}]}
RIGHT = {"call": "def answer(): return 42", "print": "print(42)"}
MIB = 1024 * 1024


def prompt(tests: str) -> Prompt:
    return Prompt(prompt_id="p", task="t", answer="", text="?", fields={"tests": json.dumps(TESTS[tests])})


@contextmanager
def resources() -> Iterator[dict[str, object]]:
    """Create files and sockets outside of the sandbox, which a program may try to reach."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as tcp:
        unix = socket.socket(socket.AF_UNIX)
        unix.bind(f"{folder}/unix")
        unix.listen()
        with unix:
            yield {
                "source": sandbox.__file__,
                "outside": f"{folder}/file",
                "outside_folder": folder,
                "port": tcp.getsockname()[1],
                "unix": f"{folder}/unix",
            }


async def settled(before: list[int]) -> bool:
    """Return whether the descendants are those of before, after the supervisor of the last run has ended."""
    for _ in range(200):
        if descendants(os.getpid()) == before:
            return True
        await asyncio.sleep(0.005)
    return False


def resident(pids: list[int]) -> int:
    pages = [int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) for pid in pids]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE")


def fenced(code: str) -> Answer:
    return answer(f"```python\n{code}\n```")


def batched(names: Iterable[str], size: int) -> Iterator[list[str]]:
    rest = list(names)
    while rest:
        yield rest[:size]
        rest = rest[size:]


def successful(
    programs: Mapping[str, str], kind: str, write: Callable[..., str], *, seconds: float = DEADLINE_SECONDS
) -> list[str]:
    """Return the hostile programs that were rewarded, ended as an error, or left processes.

    `write` makes a program from a template and the resources outside of the sandbox.
    """

    async def play() -> list[str]:
        successes = []
        config = VerifierConfig(workers=2, cache_entries=0)
        reward = CodeTestsConfig(name="code_tests", test_seconds=seconds, memory_mib=256)
        with resources() as targets:
            async with Bench([reward], config=config) as bench:
                before = await stable_descendants()
                memory = resident(before)
                for names in batched(programs, AT_ONCE):
                    answers = [fenced(write(programs[name], **targets)) for name in names]
                    for name, (component,) in zip(
                        names, await bench.scorer.score(prompt(kind), answers), strict=True
                    ):
                        if component.value != 0 or component.outcome is Outcome.ERROR:
                            successes.append(f"{name}: {component}")
                    if not await settled(before):
                        successes.append(f"of {names} processes stayed")
                ((component,),) = await bench.scorer.score(prompt(kind), [fenced(RIGHT[kind])])
                assert component.value == 1, "the sandbox does not work any more"
                assert resident(before) - memory < 16 * MIB
                assert bench.sample("sandbox_servers_lost_total") == 0
                assert os.listdir(str(targets["outside_folder"])) == ["unix"]
        return successes

    return asyncio.run(play())


def unchanged(template: str, **_: object) -> str:
    return template


def with_resources(template: str, **targets: object) -> str:
    return SHARED + template.format(**targets)


def after_calls(template: str, **_: object) -> str:
    return calls.PRELUDE + template


def after_imports(template: str, **_: object) -> str:
    return interpreter.PRELUDE + template


def test_no_hostile_program_that_is_called_is_rewarded() -> None:
    assert successful(CALLED, "call", with_resources) == []


def test_no_hostile_program_with_system_calls_is_rewarded() -> None:
    assert successful(calls.CALLS, "call", after_calls) == []


def test_no_hostile_program_that_abuses_the_interpreter_is_rewarded() -> None:
    assert successful(interpreter.INTERPRETED, "call", after_imports) == []


def test_no_hostile_program_that_tries_to_outlive_its_run_is_rewarded() -> None:
    assert successful(interpreter.STAYING, "call", after_imports, seconds=SHORT_SECONDS) == []


def test_no_hostile_program_that_prints_is_rewarded() -> None:
    assert successful({**PRINTED, **interpreter.WRONG_OUTPUT}, "print", unchanged) == []
