"""The tests of a prompt as `Case`s: the calls and inputs of a program, and the expected results.

The field `tests` is JSON, a list of
    {"input": "3 4\\n", "output": "7\\n"}                          standard input and output, or
    {"call": "add", "args": [3, 4], "expected": 7}               a call and its value as JSON, or
    "assert add(3, 4) == 7"                                      an assertion (assertions.py lists the forms),
or it is a text of assertions. The field `setup`, if any, is code that goes before the program.
"""

import ast
import json
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from slipstream.records import Prompt
from slipstream.sandbox.job import RunResult, compact
from slipstream.verifier.code import compare, length
from slipstream.verifier.code.assertions import assertions
from slipstream.verifier.code.imports import UnusableTest, imports
from slipstream.verifier.reward import UnusableGroundTruth

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
LIMITS = {
    "late": "late: no end before its deadline",
    "output": "output: more than it may write",
    "disk": "disk: more scratch files than it may have",
    "threads": "threads: more than it may have",
}
"""End of a run → the text about the limit that it exceeded."""
OUT_OF_MEMORY = "MemoryError"
MAX_TESTS = 1000
Check = Callable[[Any], bool]
"""Returns whether the value that a call sent is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One test. `expected` never leaves this process."""

    stdin: str = ""
    call: str | None = None
    arguments: str | None = None
    imports: str = ""
    """Imports that the call needs; they run after the program."""
    output: str | None = None
    check: Check | None = None

    def fault(self, ran: RunResult) -> str:
        """Return why a run fails the test; an empty text if it ended normally with the expected result."""
        return fault_of(ran) or self._wrong(ran)

    def _wrong(self, ran: RunResult) -> str:
        if self.check is None:
            return "" if _lines(ran.stdout) == _lines(self.output or "") else "wrong: another output"
        if ran.value is None:
            return "wrong: no value"
        try:
            right = self.check(json.loads(ran.value))
        except (ValueError, TypeError, RecursionError):
            right = False
        return "" if right else "wrong: another value"


def cases_of(prompt: Prompt) -> Sequence[Case]:
    """Return the tests of a prompt. Errors: UnusableGroundTruth naming the prompt and the test."""
    written = prompt.fields.get("tests", "")
    try:
        cases = _cases(written, prompt.fields.get("entry_point"))
    except (UnusableTest, RecursionError, MemoryError) as error:
        reason = f"field `tests`: {error or type(error).__name__}"
        raise UnusableGroundTruth(reason, prompt_id=prompt.prompt_id) from error
    if not 1 <= len(cases) <= MAX_TESTS:
        reason = f"field `tests`: {len(cases)} tests; 1 to {MAX_TESTS} are needed"
        raise UnusableGroundTruth(reason, prompt_id=prompt.prompt_id)
    return cases


def fault_of(ran: RunResult) -> str:
    """Return why a run failed; an empty text if the program ended by itself with the status 0.

    The texts go into logs and files. The only part that the program can choose is the name of an exception.
    """
    if ran.end in LIMITS:
        return LIMITS[ran.end]
    if ran.end == "killed":
        return f"killed: {_signal(ran.status)}"
    if ran.status == 0:
        return ""
    name = ran.error if NAME.fullmatch(ran.error) else ""
    if name == OUT_OF_MEMORY:
        return "memory: MemoryError"
    return f"crashed: {name or f'exit status {ran.status}'}"


@lru_cache(maxsize=16)
def _cases(written: str, entry_point: str | None) -> Sequence[Case]:
    """Read the tests once for all answers of a group: they may be megabytes."""
    try:
        tests = json.loads(written)
    except ValueError:
        return _asserted(written, entry_point)
    if isinstance(tests, dict):
        tests = [tests]
    if not isinstance(tests, list):
        raise UnusableTest("a list of tests or assertions is needed")
    if tests and all(isinstance(test, str) for test in tests):
        return _asserted("\n".join(tests), entry_point)
    return [_case(test, f"[{position}]") for position, test in enumerate(tests)]


def _asserted(text: str, entry_point: str | None) -> list[Case]:
    needed = imports(text)
    return [Case(call=call, check=check, imports=needed) for call, check in assertions(text, entry_point)]


def _case(test: Any, where: str) -> Case:
    if isinstance(test, dict) and set(test) == {"input", "output"}:
        if not all(isinstance(text, str) for text in test.values()):
            raise UnusableTest(f"{where}: input and output are texts")
        length.check_output(test["output"], where)
        return Case(stdin=test["input"], output=test["output"])
    if not isinstance(test, dict) or set(test) != {"call", "args", "expected"}:
        raise UnusableTest(
            f"{where}: an object of input and output, or of call, args and expected, is needed"
        )
    if not isinstance(test["call"], str) or not isinstance(test["args"], list):
        raise UnusableTest(f"{where}: call is a text and args a list")
    try:
        ast.parse(test["call"], mode="eval")
    except (SyntaxError, ValueError) as error:
        raise UnusableTest(f"{where}: call is not an expression: {error}") from error
    expected = test["expected"]
    length.check_value(expected, where)
    return Case(
        call=test["call"],
        arguments=compact(test["args"]),
        check=lambda sent: compare.equals_json(expected, sent),
    )


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _lines(text: str) -> list[str]:
    """Return the lines without trailing white space, and without empty lines at the end."""
    return [line.rstrip() for line in text.rstrip().split("\n")]
