"""Would the verifier start with these rewards, and can it read the ground truths? It is asked."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from slipstream.cli.prompt_checks import looked_at
from slipstream.config import RunConfig
from slipstream.config.checks import Problem
from slipstream.config.load import given_tree
from slipstream.config.rewards import RewardSection
from slipstream.tasks import make_source
from slipstream.tasks.judgeable import why_not

Severity = Literal["error", "note"]
CHECK = "slipstream.verifier.check"
CHECK_SECONDS = 120.0
BOUND = frozenset({"math", "json_schema", "judge", "reward_model", "process_reward", "code_tests"})
"""Kinds that need a library, a file, a model or a sandbox."""
SHOWN = 3
REMEDIES: Mapping[Severity, str] = {
    "error": "it is needed on this machine, where the run would start",
    "note": "this machine lacks it; the verifier's may have it",
}


def check_verifier(
    config: RunConfig, *, here: Severity, ask: Callable[[str], dict[str, Any]] | None = None
) -> Iterator[Problem]:
    """What the verifier would refuse; `here` is how grave it is that this machine lacks something."""
    if not any(map(_is_bound, config.rewards)):
        return
    asked = {"config": given_tree(config), "truths": _truths(config)}
    try:
        found = (ask or _found)(json.dumps(asked, sort_keys=True))
    except (OSError, subprocess.SubprocessError) as error:
        last = str(getattr(error, "stderr", "") or error).strip().rsplit("\n", 1)[-1]
        remedy = "look at what the verifier logs when it starts"
        yield Problem(key="rewards", reason=f"could not be tried: {last}", remedy=remedy, severity="note")
        return
    for each in found["refusals"]:
        severity: Severity = here if each["here"] else "error"
        remedy = REMEDIES[severity] if each["here"] else "correct it"
        yield Problem(key=each["key"], reason=each["reason"], remedy=remedy, severity=severity)
    yield from _unread(config.rewards, found)


def _is_bound(reward: RewardSection) -> bool:
    return reward.kind in BOUND or getattr(reward, "extract_pattern", None) is not None


def _truths(config: RunConfig) -> dict[str, str]:
    """Ground truth → the first prompt that has it, of those that look like mathematics; {} without `math`."""
    maths = [reward for reward in config.rewards if reward.kind == "math"]
    if not maths:
        return {}
    try:
        prompts = list(looked_at(config, make_source(config.data, seed=config.seed)))
    except (ValueError, OSError, ImportError):  # said of the data
        return {}
    truths: dict[str, str] = {}
    for prompt in prompts:
        if not why_not(maths[0], prompt):
            truths.setdefault(prompt.answer.strip(), prompt.prompt_id)
    return truths


def _unread(rewards: Sequence[RewardSection], found: dict[str, Any]) -> Iterator[Problem]:
    name = next((reward.name for reward in rewards if reward.kind == "math"), "")
    bad, left = found["unread"], found["left"]
    if bad:
        named = ", ".join(f"prompt {prompt} {reason}" for prompt, reason in bad[:SHOWN])
        more = f", and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
        whom = "it" if len(bad) == 1 else "them"
        yield Problem(
            key="data",
            reason=f"{named}{more}; the reward `{name}` cannot judge {whom}",
            remedy=f"correct the row, or leave the reward `{name}` out",
        )
    if left:
        yield Problem(
            key="data",
            reason=f"{left:,} ground truths were not tried, for lack of time or of math-verify",
            remedy="the verifier names each that it cannot read",
            severity="note",
        )


@lru_cache(maxsize=8)
def _found(asked: str) -> dict[str, Any]:
    """The verifier's answer; stages often ask the same. Errors: SubprocessError, OSError."""
    command = [sys.executable, "-m", CHECK]
    done = subprocess.run(
        command, input=asked, capture_output=True, text=True, timeout=CHECK_SECONDS, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found
