"""A program never fails because the machine lacks memory, disk or threads (invariant 11)."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from slipstream.config import VerifierConfig
from slipstream.config.rewards import CodeTestsConfig
from slipstream.records import Outcome, Prompt
from slipstream.sandbox.capacity import TooLittleCapacity
from slipstream.sandbox.job import Run, RunResult
from slipstream.sandbox.server_process import SandboxLost
from slipstream.verifier.code.cases import cases_of
from slipstream.verifier.reward import UnusableGroundTruth, Verdict
from slipstream.verifier.rewards.code_tests import CodeTests
from verifier.scoring import Bench, answer, scores

PROMPT = Prompt(
    prompt_id="p", task="t", answer="", text="?", fields={"tests": '[{"input": "", "output": "42"}]'}
)
CONFIG = CodeTestsConfig(name="code_tests", test_seconds=1.5, memory_mib=256)


def fenced(program: str) -> str:
    return f"```python\n{program}\n```"


class Runs:
    """A sandbox in which every run has the same result."""

    def __init__(self, ran: RunResult) -> None:
        self._ran = ran

    async def run(self, run: Run, *, group: str) -> RunResult:
        return self._ran


def judged(ran: RunResult) -> Verdict:
    reward: Any = CodeTests(CONFIG, Runs(ran), overran=lambda: None)  # type: ignore[arg-type]
    return asyncio.run(reward.score_one(PROMPT, answer(fenced("print(42)"))))


def test_a_failure_on_a_doubtful_machine_is_an_error_and_a_success_is_a_score() -> None:
    wrong = RunResult(
        end="exited", status=1, stdout="", value=None, seconds=0.1, error="OSError", doubt="no room"
    )
    with pytest.raises(SandboxLost, match="crashed: OSError, perhaps by this machine's fault: no room"):
        judged(wrong)
    assert judged(replace(wrong, status=0, stdout="42")).value == 1
    assert judged(replace(wrong, doubt="")).value == 0
    assert judged(replace(wrong, end="threads")).detail == "test 1 of 1: threads: more than it may have"


def test_a_verifier_on_a_machine_that_is_too_small_does_not_start() -> None:
    async def once() -> None:
        config = CodeTestsConfig(name="code_tests", memory_mib=65_536)
        async with Bench([config], config=VerifierConfig(workers=1024)):
            pass

    with pytest.raises(
        TooLittleCapacity,
        match=r"verifier\.workers: 1024 programs .* lower verifier\.workers or memory_mib of code_tests",
    ):
        asyncio.run(once())


PROGRAMS = {
    "late: no end before its deadline": "while True: pass",
    "killed: SIGSEGV": "import ctypes\nctypes.string_at(0)",
    "memory: MemoryError": "print(len(bytes(10 ** 9)))",
    "crashed: ZeroDivisionError": "1 / 0",
    "crashed: Strange": "class Strange(Exception): pass\nraise Strange('\\x1b[2J' * 9)",
    "crashed: exit status 3": "raise SystemExit(3)",
    "crashed: exit status 1": "raise type('\\x1b[2J', (Exception,), {})",
    "output: more than it may write": "while True: print('x' * 9999)",
    "disk: more scratch files than it may have": (
        "import time\nfor n in range(300): open(str(n), 'w')\ntime.sleep(9)"
    ),
    "wrong: another output": "print(41)",
}


def test_the_verdict_on_a_failed_program_has_the_reason() -> None:
    components = scores(CONFIG, PROMPT, *[answer(fenced(program)) for program in PROGRAMS.values()])
    assert [component.detail for component in components] == [f"test 1 of 1: {why}" for why in PROGRAMS]
    assert {(component.value, component.outcome) for component in components} == {(0, Outcome.SCORE)}


def test_a_verdict_on_several_tests_names_the_first_that_fails() -> None:
    cases = [{"call": "f", "args": [n], "expected": n} for n in range(3)]
    prompt = replace(PROMPT, fields={"tests": json.dumps(cases)})

    def details(programs: Sequence[str], **settings: Any) -> list[tuple[float, str]]:
        config = CodeTestsConfig(name="code_tests", **settings)
        components = scores(config, prompt, *[answer(fenced(program)) for program in programs])
        return [(each.value, each.detail) for each in components]

    assert details(["def f(n): return n % 2", "def f(n): 1 / (1 - n)", "def f(n): return n"]) == [
        (0, "test 3 of 3: wrong: another value"),
        (0, "test 1 of 3: wrong: another value"),
        (1, ""),
    ]
    assert details(["def f(n): return n % 2"], partial_credit=True) == [
        (2 / 3, "2 of 3 tests; test 3 of 3: wrong: another value")
    ]


LONG = "x" * 262_144


@pytest.mark.parametrize(
    "tests",
    [
        json.dumps([{"input": "", "output": LONG}]),
        json.dumps([{"call": "f", "args": [], "expected": LONG}]),
        f"assert f() == {LONG!r}",
        json.dumps([{"input": "", "output": "é" * 131_072}], ensure_ascii=False),
    ],
)
def test_an_expected_output_beyond_the_limit_of_outputs_is_an_unusable_ground_truth(tests: str) -> None:
    prompt = replace(PROMPT, fields={"tests": tests})
    with pytest.raises(UnusableGroundTruth, match="a program may write less than 262,144"):
        cases_of(prompt)
    shorter = replace(PROMPT, fields={"tests": tests.replace("xxx", "x").replace("ééé", "é")})
    assert cases_of(shorter)
