"""Call rewards once, as the verifier does: `python -m slipstream.verifier.try_rewards`, run by `validate`.

Reads {"config", "rows": [[prompt, demonstration]]} from standard input, in JSON. Writes {"custom": [...],
"excluded": [name of a `format`]}. An entry of "custom" has the reward's position, and either why it is
refused or the row that it was tried on, with its scores of the demonstration and of an empty answer. What the
functions print goes to standard error.
"""

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from slipstream.config import RunConfig, VerifierConfig, parse_config
from slipstream.config.rewards import CustomConfig, ExactMatchConfig, FormatConfig
from slipstream.functions import load_function, named_function
from slipstream.prompts.prompt_json import prompt_from_json
from slipstream.records import FinishReason, Outcome, Prompt
from slipstream.rpc.errors import SlipstreamError
from slipstream.telemetry import logs, metrics
from slipstream.verifier.resources import Resources
from slipstream.verifier.reward import Answer, UnusableGroundTruth, Verdict, describe
from slipstream.verifier.rewards.bind import make_reward

TRL_PARAMETER = "completions"
Row = tuple[Prompt, str]
"""A prompt and a demonstration: an answer that is right."""
Tried = dict[str, Any]


def try_rewards(config: RunConfig, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the result for each custom function, and the names of the formats that rule out an exact match.

    Such a format is one that no ground truth in `rows` has, while an exact match compares the whole text.
    """
    return {
        "custom": [
            {"position": position, **_tried(config, reward, rows)}
            for position, reward in enumerate(config.rewards)
            if isinstance(reward, CustomConfig)
        ],
        "excluded": list(_excluded(config, rows)),
    }


def why_not_callable(reward: CustomConfig) -> str:
    """Return why the verifier cannot call the function; an empty text if it can."""
    try:
        name = named_function(reward.function, entry_point=reward.entry_point)
        function = load_function(name)
    except Exception as error:  # a user's module may raise anything
        return f"cannot be imported: {error if isinstance(error, ValueError) else describe(error)}"
    if inspect.iscoroutinefunction(function):
        return f"{name} is a coroutine function, and a reward is a plain one"
    try:
        signature = inspect.signature(function)
    except ValueError:  # a C function without a signature
        return ""
    if TRL_PARAMETER in signature.parameters:
        return f"{name} takes `{TRL_PARAMETER}`, a list, which is the signature of TRL"
    try:
        signature.bind("prompt", "answer", **reward.arguments)
    except TypeError as error:
        answers = "answers" if reward.group else "an answer"
        arguments = ", ".join(["a prompt", answers, *sorted(reward.arguments)])
        return f"{name} cannot be called with {arguments}: {error}"
    return ""


def _tried(config: RunConfig, reward: CustomConfig, rows: Sequence[Row]) -> Tried:
    refused = why_not_callable(reward)
    scored_row: Tried = {}
    for number, (prompt, demonstration) in enumerate([] if refused else rows):
        if not reward.applies_to(prompt.source):
            continue
        try:
            right, empty = asyncio.run(_called(config.verifier, reward, prompt, (demonstration, "")))
        except (SlipstreamError, UnusableGroundTruth) as error:
            return {"refused": str(error)}
        for text, verdict in ((demonstration, right), ("", empty)):
            if verdict.outcome is Outcome.ERROR:
                whose = f"the answer {text[:60]!r}" if text else "an empty answer"
                return {"refused": f"called with {whose} to prompt {prompt.prompt_id}: {verdict.detail}"}
        scored_row = scored_row or {"row": number, "demonstration": _shown(right), "empty": _shown(empty)}
    return {"refused": refused, **scored_row}


async def _called(
    verifier: VerifierConfig, reward: CustomConfig | FormatConfig, prompt: Prompt, texts: Sequence[str]
) -> Sequence[Verdict]:
    """Return the verdicts on these answers, by the reward in a verifier with one child.

    Errors: WorkerLost, UnusableGroundTruth.
    """
    settings = verifier.model_copy(update={"workers": 1})
    resources = Resources.make(settings, metrics=metrics.Metrics(), log=logs.Log(pod="try", level="error"))
    made = make_reward(reward, resources)
    answers = [Answer(text=t, tokens=len(t.split()), finish_reason=FinishReason.STOP) for t in texts]
    await resources.start()
    try:
        return await made.score(prompt, answers)
    except UnusableGroundTruth:
        raise
    except Exception as error:  # as the scorer does
        return [Verdict(value=0.0, outcome=Outcome.ERROR, detail=describe(error))] * len(answers)
    finally:
        await made.close()
        await resources.close()


def _excluded(config: RunConfig, rows: Sequence[Row]) -> Iterator[str]:
    """Yield the names of the formats that no ground truth has, if an exact match compares the whole text."""
    exact = [r for r in config.rewards if isinstance(r, ExactMatchConfig) and r.extract == "whole"]
    compared = [prompt for prompt, _ in rows if any(reward.applies_to(prompt.source) for reward in exact)]
    for reward in config.rewards:
        if not isinstance(reward, FormatConfig):
            continue
        prompts = [prompt for prompt in compared if reward.applies_to(prompt.source)]
        verdicts = [asyncio.run(_called(config.verifier, reward, p, [p.answer.strip()]))[0] for p in prompts]
        if verdicts and all(verdict.outcome is Outcome.SCORE and not verdict.value for verdict in verdicts):
            yield reward.name


def _shown(verdict: Verdict) -> str:
    if verdict.outcome is Outcome.INVALID_ANSWER:
        return f"{verdict.value:g} (invalid: {verdict.detail})"
    return f"{verdict.value:g}"


def main() -> None:
    """Write the report on the configuration in standard input."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as output:
        os.dup2(2, 1)
        request = json.load(sys.stdin)
        rows = [(prompt_from_json(prompt), demonstration) for prompt, demonstration in request["rows"]]
        json.dump(try_rewards(parse_config(request["config"]), rows), output)


if __name__ == "__main__":
    main()
