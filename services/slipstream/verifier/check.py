"""Report what a verifier would refuse to start with: `python -m slipstream.verifier.check`, for `validate`.

Reads {"config", "truths": kind of reward → [[prompt, answer, fields]]} from standard input, in JSON; writes
{"refusals": [{key, reason, here}], "unread": kind → [[prompt, reason]], "left": ground truths not yet read}.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

from slipstream.answers.cpu_limit import TooSlow, cpu_limit
from slipstream.answers.latex_input import UnsupportedExpression, normalize
from slipstream.config import Invalid, Problem, RunConfig, VerifierConfig, parse_config, rewards, sources
from slipstream.records import Prompt
from slipstream.sandbox import capacity, cgroup, job, packages, server_process
from slipstream.sandbox.layers import Report, TooFewLayers
from slipstream.sandbox.packages import PackageMissing
from slipstream.sandbox.report import report
from slipstream.telemetry import logs, metrics
from slipstream.verifier import missing_resource, setting_names
from slipstream.verifier.code.cases import cases_of
from slipstream.verifier.resources import Resources
from slipstream.verifier.reward import UnusableGroundTruth
from slipstream.verifier.rewards.bind import make_reward

TRUTHS_SECONDS = 5.0
"""Time for all ground truths together; most take a millisecond."""
ONE_SECONDS = 1.0
Refusal = dict[str, Any]
Truth = tuple[str, str, dict[str, str]]
"""Prompt, answer, fields."""
Bad = tuple[str, str]
"""Prompt and reason."""
Read = Callable[[Prompt], object]


def refusals(
    config: RunConfig, layers: Callable[[], Coroutine[Any, Any, Report]] = report
) -> Iterator[Refusal]:
    """Yield why each reward cannot be made, and whether another machine may have what is missing."""
    resources = Resources.make(
        config.verifier, metrics=metrics.Metrics(), log=logs.Log(pod="check", level="error")
    )
    for position, reward in enumerate(config.rewards):
        if not reward.needs_trial():
            continue
        try:
            make_reward(reward, resources)
        except Invalid as error:
            key = f"rewards.{position}.{error.key}" if error.key else f"rewards.{position}"
            reason = str(Problem(key="", reason=error.reason, remedy=error.remedy))
            yield _refusal(key, reason, is_local=isinstance(error, missing_resource.MissingResource))
        except ValueError as error:
            yield _refusal(f"rewards.{position}", str(error), is_local=False)
    programs = [reward.memory_mib for reward in config.rewards if isinstance(reward, rewards.CodeTestsConfig)]
    programs += [tool.memory_mib for tool in sources.python_tools_of(config)]
    if programs:
        yield from _of_sandbox(config.verifier, max(programs), layers)


def _of_sandbox(
    config: VerifierConfig, memory_mib: int, layers: Callable[[], Coroutine[Any, Any, Report]]
) -> Iterator[Refusal]:
    """Yield which layer of isolation is missing, or for what the machine is too small."""
    try:
        key = "verifier.isolation.packages"
        packages.find(config.isolation.packages)
        key = "verifier.isolation.require"
        isolation = asyncio.run(layers())
        isolation.demand(config.isolation.require)
        key = "verifier.workers"
        capacity.servers_for(
            capacity.Capacity.of_this_process(cgroup.own()),
            capacity.Need.of(memory_mib, job.Bounds(), isolation),
            wanted=config.workers,
            settings=setting_names.SETTING_NAMES,
        )
    except (PackageMissing, TooFewLayers, capacity.TooLittleCapacity, server_process.SandboxLost) as error:
        yield _refusal(key, str(error), is_local=True)


def unread(kind: str, truths: Sequence[Truth], *, seconds: float = TRUTHS_SECONDS) -> tuple[list[Bad], int]:
    """Return the prompts whose ground truth the kind cannot read, and how many there was no time to read."""
    try:
        read = READERS[rewards.KINDS[kind].facts.ground_truth]()
    except ImportError:  # `refusals` reports the library
        return [], len(truths)
    end = time.monotonic() + seconds
    reasons: dict[tuple[str, ...], str] = {}
    bad: list[Bad] = []
    for done, (name, answer, fields) in enumerate(truths):
        key = (answer, *fields.values())
        if key not in reasons:
            if time.monotonic() > end:
                return bad, len(truths) - done
            reasons[key] = _why_unread(read, name, answer, fields)
        if reasons[key]:
            bad.append((name, reasons[key]))
    return bad, 0


def _why_unread(read: Read, name: str, answer: str, fields: dict[str, str]) -> str:
    """Return why a ground truth cannot be read; an empty text if it can."""
    try:
        with cpu_limit(ONE_SECONDS):
            read(Prompt(prompt_id=name, task="check", text="?", answer=answer, fields=fields))
    except (UnsupportedExpression, TooSlow) as error:
        return f"has the answer {answer[:40]!r}, which is not read: {error}"
    except UnusableGroundTruth as error:
        return f"has tests that cannot be had: {error.reason}"
    return ""


def _expressions() -> Read:
    from slipstream.answers.latex import parse_answer  # importing SymPy takes half a second

    return lambda prompt: parse_answer(normalize(prompt.answer))


READERS: Mapping[rewards.GroundTruth, Callable[[], Read]] = {
    "expression": _expressions,
    "tests": lambda: cases_of,
}
"""Ground truth that takes a computation to read → what returns its reader. Errors: ImportError."""


def _refusal(key: str, reason: str, *, is_local: bool) -> Refusal:
    return {"key": key, "reason": reason, "here": is_local}


def main() -> None:
    """Write the report on the configuration in standard input."""
    request = json.load(sys.stdin)
    unread_of = {kind: unread(kind, truths) for kind, truths in request["truths"].items()}
    report_of_run = {
        "refusals": list(refusals(parse_config(request["config"]))),
        "unread": {kind: bad for kind, (bad, _) in unread_of.items()},
        "left": sum(left for _, left in unread_of.values()),
    }
    print(json.dumps(report_of_run))


if __name__ == "__main__":
    main()
