"""Can the user's own rewards be found, be called, and do they return scores? A child process tries them."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from slipstream.config import RunConfig
from slipstream.config.checks import Problem
from slipstream.config.load import given_tree
from slipstream.config.rewards import CustomConfig, ExactMatchConfig, FormatConfig
from slipstream.prompts import make_source
from slipstream.prompts.prompt_json import prompt_to_json
from slipstream.records import Prompt

TRY = "slipstream.verifier.try_rewards"
START_SECONDS = 120.0
"""Time for the imports of the user's modules; the deadlines of the calls come on top."""
BUSY = 5
"""Deadlines that a call may take on a machine that is too busy, as in the verifier."""
LOOKED_AT, MOST_ROWS = 64, 3
"""Prompts that are looked at, and how many of different tasks are tried."""
REMEDY = (
    "it is called as function(prompt, {answers}, **arguments) and returns {result}; the text of an answer is "
    "answer.text, the ground truth is prompt.answer"
)


def check_rewards(
    config: RunConfig,
    *,
    folder: Path | None = None,
    prompts: bool = True,
    ask: Callable[[str], dict[str, Any]] | None = None,
) -> Iterator[Problem]:
    """Problems of the rewards of the kind `custom`, and of a format that no exact match can have.

    `folder`: where the modules of the rewards are; by default the working directory. Without `prompts` no
    function is called: the data is not on this machine.
    """
    custom = [reward for reward in config.rewards if isinstance(reward, CustomConfig)]
    if not custom and not _may_exclude(config):
        return
    rows = demonstrations(config) if prompts else []
    calls = sum(reward.timeout_seconds for reward in custom) * BUSY * 2 * max(1, len(rows))
    demonstrated = [[prompt_to_json(prompt), text] for prompt, text in rows]
    asked = json.dumps({"config": given_tree(config), "rows": demonstrated})
    try:
        found = ask(asked) if ask else _asked(asked, START_SECONDS + calls, str(folder or Path.cwd()))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        last = str(getattr(error, "stderr", "") or error).strip().rsplit("\n", 1)[-1]
        yield Problem(
            key="rewards",
            reason=f"the process that tried them ended: {last}",
            remedy="look at what the modules of your own rewards do when they are imported",
        )
        return
    for tried in found["custom"]:
        if prompts or tried["refused"]:
            yield _problem(config, tried, rows)
    for name in found["excluded"]:
        yield Problem(
            key="rewards",
            reason=f"`exact_match` compares the whole completion, and no ground truth has the form that "
            f"`{name}` wants: no answer can score both",
            remedy="set `extract` of exact_match, for example to answer_tag",
            severity="note",
        )


def demonstrations(config: RunConfig) -> list[tuple[Prompt, str]]:
    """The first training prompt of each task with an answer that is right; none where data cannot be read."""
    try:
        source = make_source(config.data, seed=config.seed)
        first: dict[str, tuple[Prompt, str]] = {}
        for prompt, text in map(source.demonstration, range(LOOKED_AT)):
            first.setdefault(prompt.task, (prompt, text))
    except (ValueError, OSError, ImportError):  # said of the data
        return []
    return list(first.values())[:MOST_ROWS]


def _problem(config: RunConfig, tried: dict[str, Any], rows: list[tuple[Prompt, str]]) -> Problem:
    """Why a function is refused, or a note of what it said."""
    reward = config.rewards[tried["position"]]
    assert isinstance(reward, CustomConfig)
    key = f"rewards.{tried['position']}.{'function' if reward.function else 'entry_point'}"
    if tried["refused"]:
        answers, result = ("answers", "as many numbers") if reward.group else ("answer", "a finite number")
        remedy = REMEDY.format(answers=answers, result=result)
        if tried["refused"].startswith("cannot be imported"):
            remedy = (
                "name a function that the verifier can import, from where it runs or from what is installed"
            )
        return Problem(key=key, reason=tried["refused"], remedy=remedy)
    if "row" not in tried:
        reason, remedy = "was not called, because there is no row of data", "correct the data"
        return Problem(key=key, reason=reason, remedy=remedy, severity="note")
    prompt, text = rows[tried["row"]]
    told_apart = tried["demonstration"] != tried["empty"]
    return Problem(
        key=key,
        reason=f"`{reward.name}` says {tried['demonstration']} of the right answer {text[:60]!r} to prompt "
        f"{prompt.prompt_id}, and {tried['empty']} of an empty one",
        remedy="look whether that is meant"
        if told_apart
        else "it should tell them apart, or nothing is learned",
        severity="note",
    )


def _may_exclude(config: RunConfig) -> bool:
    kinds = config.rewards
    whole = any(isinstance(reward, ExactMatchConfig) and reward.extract == "whole" for reward in kinds)
    return whole and any(isinstance(reward, FormatConfig) for reward in kinds)


@lru_cache(maxsize=8)
def _asked(asked: str, seconds: float, folder: str) -> dict[str, Any]:
    """What the child says; stages often ask the same. Errors: SubprocessError, OSError, ValueError."""
    done = subprocess.run(
        [sys.executable, "-m", TRY],
        cwd=folder,
        input=asked,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found
