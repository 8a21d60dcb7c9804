"""What a verifier would refuse to start with: `python -m slipstream.verifier.check`; validation asks it.

Reads {"config", "truths": ground truth → prompt} from standard input, in JSON; writes {"refusals": [{key,
reason, here}], "unread": [[prompt, reason]], "left": truths for which there was no time}.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

from slipstream.config import RunConfig
from slipstream.config.load import parse_config
from slipstream.tasks.cpu_limit import TooSlow, cpu_limit
from slipstream.tasks.mathematics import Refused, readable
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.verifier.reward import NotHere
from slipstream.verifier.rewards.table import REWARDS
from slipstream.verifier.sandbox.layers import Report, TooFewLayers
from slipstream.verifier.sandbox.report import report
from slipstream.verifier.sandbox.server_process import SandboxLost
from slipstream.verifier.surroundings import Surroundings

ELSEWHERE = frozenset({"custom", "format"})
"""Kinds that validation looks at by itself."""
TRUTHS_SECONDS = 5.0
"""Time for all ground truths together; a thousandth of a second is enough for most."""
ONE_SECONDS = 1.0
Refusal = dict[str, Any]


def refusals(
    config: RunConfig, layers: Callable[[], Coroutine[Any, Any, Report]] = report
) -> Iterator[Refusal]:
    """Each reward that cannot be made, and why; `here` says that another machine may have what it needs."""
    surroundings = Surroundings.make(config.verifier, metrics=Metrics(), log=Log(pod="check", level="error"))
    for position, reward in enumerate(config.rewards):
        if reward.judged_by_policy or reward.kind in ELSEWHERE:
            continue
        try:
            REWARDS[reward.kind](reward, surroundings)
        except ValueError as error:
            key, _, reason = str(error).partition(": ")
            named = key in type(reward).model_fields
            where = f"rewards.{position}.{key}" if named else f"rewards.{position}"
            yield _refusal(where, reason if named else str(error), here=isinstance(error, NotHere))
    if any(reward.kind == "code_tests" for reward in config.rewards):
        try:
            asyncio.run(layers()).demand(config.verifier.isolation.require)
        except (TooFewLayers, SandboxLost) as error:
            yield _refusal("verifier.isolation.require", str(error), here=True)


def unread(
    truths: Mapping[str, str], *, seconds: float = TRUTHS_SECONDS
) -> tuple[list[tuple[str, str]], int]:
    """Prompts whose ground truth is no expression, with the reason; how many there was no time for."""
    try:
        from slipstream.tasks.latex import parsed
    except ImportError:  # said of the reward
        return [], len(truths)
    bad: list[tuple[str, str]] = []
    end = time.monotonic() + seconds
    for done, (truth, prompt) in enumerate(truths.items()):
        if time.monotonic() > end:
            return bad, len(truths) - done
        try:
            with cpu_limit(ONE_SECONDS):
                parsed(readable(truth))
        except (Refused, TooSlow) as error:
            bad.append((prompt, f"has the answer {truth[:40]!r}, which is not read: {error}"))
    return bad, 0


def _refusal(key: str, reason: str, *, here: bool) -> Refusal:
    return {"key": key, "reason": reason, "here": here}


def main() -> None:
    """Answer the one question on standard input."""
    asked = json.load(sys.stdin)
    bad, left = unread(asked["truths"])
    answer = {"refusals": list(refusals(parse_config(asked["config"]))), "unread": bad, "left": left}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
