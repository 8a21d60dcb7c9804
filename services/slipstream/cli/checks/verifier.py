"""Check that a verifier starts with these rewards and can read the ground truths, in a child process."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from slipstream.cli.checks.prompts import looked_at
from slipstream.config import Problem, RunConfig, load, sources
from slipstream.config.rewards import GroundTruth, RewardSection
from slipstream.processes.failure import why_failed
from slipstream.prompts import make_source, reward_needs
from slipstream.records import Prompt

Severity = Literal["error", "note"]
CHECK = "slipstream.verifier.check"
CHECK_SECONDS = 120.0
READ_FIELDS: Mapping[GroundTruth, tuple[str, ...]] = {"expression": (), "tests": ("tests", "entry_point")}
"""Ground truth that takes a computation to read → the fields of a prompt that hold it, beside the answer."""
SHOWN = 3
Truth = tuple[str, str, dict[str, str]]
"""Prompt, answer, fields."""
REMEDIES: Mapping[Severity, str] = {
    "error": "it is needed on this machine, where the run would start",
    "note": "this machine lacks it; the verifier's may have it",
}


def check_verifier(
    config: RunConfig,
    *,
    if_missing: Severity,
    prompts: bool = True,
    ask: Callable[[str], dict[str, Any]] | None = None,
) -> Iterator[Problem]:
    """Yield what a verifier would refuse; `if_missing` is the severity if this machine lacks something.

    Without `prompts`, the data is not on this machine, and no ground truth is read.
    """
    programs = sources.python_tools_of(config)
    if not programs and not any(reward.needs_trial() for reward in config.rewards):
        return
    request = json.dumps({"config": load.given_tree(config), "truths": _truths(config) if prompts else {}})
    try:
        report = (ask or _report)(request)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        remedy = "look at what the verifier logs when it starts"
        yield Problem(
            key="rewards", reason=f"could not be tried: {why_failed(error)}", remedy=remedy, severity="note"
        )
        return
    for each in report["refusals"]:
        severity: Severity = if_missing if each["here"] else "error"
        remedy = REMEDIES[severity] if each["here"] else "correct it"
        yield Problem(key=each["key"], reason=each["reason"], remedy=remedy, severity=severity)
    yield from _unread(config.rewards, report)


def _truths(config: RunConfig) -> dict[str, list[Truth]]:
    """Return the ground truths for each kind of reward that needs a computation to read them."""
    rewards = [reward for reward in config.rewards if reward.facts.ground_truth in READ_FIELDS]
    if not rewards:
        return {}
    try:
        prompts = list(looked_at(config, make_source(config.data, seed=config.seed)))
    except (ValueError, OSError, ImportError):  # check_prompts reports it
        return {}
    return {reward.kind: [*_to_read(reward, prompts)] for reward in rewards}


def _to_read(reward: RewardSection, prompts: Sequence[Prompt]) -> Iterator[Truth]:
    """Yield what the reward reads of each prompt that passed the cheap check."""
    for prompt in prompts:
        if reward.applies_to(prompt.source) and not reward_needs.unmet_need(reward, prompt):
            truth = reward.facts.ground_truth
            answer = prompt.answer.strip() if truth == "expression" else ""
            fields = {name: prompt.fields[name] for name in READ_FIELDS[truth] if name in prompt.fields}
            yield prompt.prompt_id, answer, fields


def _unread(rewards: Sequence[RewardSection], report: dict[str, Any]) -> Iterator[Problem]:
    names = {reward.kind: reward.name for reward in rewards}
    for kind, bad in report["unread"].items():
        if bad:
            named = ", ".join(f"prompt {prompt} {reason}" for prompt, reason in bad[:SHOWN])
            more = f", and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
            them = "it" if len(bad) == 1 else "them"
            yield Problem(
                key="data",
                reason=f"{named}{more}; the reward `{names[kind]}` cannot judge {them}",
                remedy=f"correct the row, or leave the reward `{names[kind]}` out",
            )
    left = report["left"]
    if left:
        yield Problem(
            key="data",
            reason=f"{left:,} ground truths were not tried, for lack of time or of sympy",
            remedy="the verifier names each that it cannot read",
            severity="note",
        )


@lru_cache(maxsize=8)
def _report(request: str) -> dict[str, Any]:
    """Return the child's report, cached for stages with the same rewards.

    Errors: SubprocessError, OSError, ValueError.
    """
    command = [sys.executable, "-m", CHECK]
    done = subprocess.run(
        command, input=request, capture_output=True, text=True, timeout=CHECK_SECONDS, check=True
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report
