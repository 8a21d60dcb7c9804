"""The reward `code_tests`: run the Python program of an answer against the tests of its prompt."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from slipstream.config.rewards import CodeTestsConfig
from slipstream.records import Prompt
from slipstream.sandbox import job, server_process
from slipstream.sandbox.sandbox import Sandbox
from slipstream.verifier.adapters import Concurrently
from slipstream.verifier.code.cases import Case, cases_of
from slipstream.verifier.resources import Resources
from slipstream.verifier.reward import Answer, Reward, Verdict, invalid

MAX_CHARACTERS = 65_536
READ_FIELDS = ("tests", "setup", "entry_point")
OVERRUNS = frozenset({"late", "output", "disk", "threads"})
"""Ends of a run that exceeded a limit."""
FENCE = re.compile(r"([ \t]*+)(`{3,}+|~{3,}+)([^`]*+)")
"""A fence of Markdown: its indent, the fence, and the language of the block."""
FUTURE = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n)*(?:from __future__ import [^\n(]*\n)+")
"""Imports from `__future__`, which Python allows only at the beginning of a program."""
LANGUAGES = frozenset({"python", "python3", "py"})


def code_tests(config: CodeTestsConfig, resources: Resources) -> Reward:
    """Make the reward. The sandbox starts with the verifier."""
    resources.sandbox.prepare(memory_mib=config.memory_mib)
    overran = partial(resources.metrics.count, "reward_overruns_total", reward=config.name)
    overran(0)
    scorer = CodeTests(config, resources.sandbox, overran=overran)
    return Concurrently(scorer.score_one, cache=resources.reward_cache(config, reads=_reads))


class CodeTests:
    """Scores by the tests that pass: by their share, or by whether all do. Invariant: a run for each test."""

    def __init__(self, config: CodeTestsConfig, sandbox: Sandbox, *, overran: Callable[[], None]) -> None:
        """`overran` is called for an answer whose program exceeds a limit."""
        self._config = config
        self._sandbox = sandbox
        self._overran = overran

    async def score_one(self, prompt: Prompt, answer: Answer) -> Verdict:
        """Return the verdict on one answer. Errors: UnusableGroundTruth, SandboxLost."""
        cases = cases_of(prompt)
        program = self._program(answer)
        if program is None:
            return invalid("no closed block of Python in the answer")
        if len(program) > MAX_CHARACTERS:
            return invalid(f"a program of {len(program)} characters; at most {MAX_CHARACTERS} are run")
        program = behind(prompt.fields.get("setup", ""), program)
        passed, fault = await self._passed(program, cases, prompt.prompt_id)
        if self._config.partial_credit:
            counted = f"{passed} of {len(cases)} tests"
            detail = f"{counted}; {fault}" if fault else counted
            return Verdict(value=passed / len(cases), detail=detail)
        return Verdict(value=float(passed == len(cases)), detail=fault)

    def _program(self, answer: Answer) -> str | None:
        block = last_block(answer.text)
        text = answer.text if self._config.whole_text and answer.text.strip() else None
        return text if block is None else block

    async def _passed(self, program: str, cases: Sequence[Case], group: str) -> tuple[int, str]:
        """Return the number of tests that pass, and why the first failing test fails.

        Without partial credit, no test runs after one that fails.
        Errors: SandboxLost, also if a test may have failed by a fault of this machine.
        """
        left, passed, over, first_fault = self._config.timeout_seconds, 0, False, ""
        for number, case in enumerate(cases, 1):
            place = f"test {number} of {len(cases)}"
            if left <= 0:
                over = True
                late = f"{place}: late: {self._config.timeout_seconds:g} s for all tests are over"
                first_fault = first_fault or late
                break
            ran = await self._sandbox.run(
                job.Run(
                    code=f"{program}\n{case.imports}",
                    stdin=case.stdin,
                    call=case.call,
                    arguments=case.arguments,
                    seconds=min(left, self._config.test_seconds),
                    memory_mib=self._config.memory_mib,
                ),
                group=group,
            )
            left -= ran.seconds
            fault = case.fault(ran)
            if fault and ran.doubt and ran.end not in OVERRUNS:
                raise server_process.SandboxLost(f"{fault}, perhaps by this machine's fault: {ran.doubt}")
            over = over or ran.end in OVERRUNS
            passed += not fault
            if fault:
                first_fault = first_fault or f"{place}: {fault}"
                if not self._config.partial_credit:
                    break
        if over:
            self._overran()
        return passed, first_fault


def _reads(prompt: Prompt) -> Iterable[str]:
    return (prompt.fields.get(name, "") for name in READ_FIELDS)


def last_block(text: str) -> str | None:
    """Return the last closed block of Python in a Markdown text, without the indent of its fence; or None.

    As CommonMark defines, the closing fence is at least as long as the opening one, so a shorter fence inside
    a block is text.
    """
    code: str | None = None
    opening: re.Match[str] | None = None
    block: list[str] = []
    for line in text.split("\n"):
        fence = FENCE.fullmatch(line.rstrip())
        if opening is None:
            opening, block = fence, []
        elif fence and not fence[3] and fence[2].startswith(opening[2]):
            code = "\n".join(block) if _is_python(opening[3]) else code
            opening = None
        else:
            block.append(line.removeprefix(opening[1]))
    return code


def behind(setup: str, program: str) -> str:
    """Return the program with `setup` in front of it, but after its imports from `__future__`."""
    if not setup:
        return program
    future = FUTURE.match(program)
    begin = future.end() if future else 0
    return f"{program[:begin]}{setup}\n{program[begin:]}"


def _is_python(language: str) -> bool:
    """Return whether the text after a fence begins with a name of Python."""
    words = language.lower().split(maxsplit=1)
    return bool(words) and words[0] in LANGUAGES
