"""Run an agent program once, with fixed answers in the place of the policy's.

    python -m slipstream.actor.program.trial SECTION MODEL PROMPT

SECTION is `data.environment` of a run and PROMPT a prompt, both in JSON; MODEL is the directory of the
policy's tokenizer, empty for the tiny model. The last line of the standard output is a list of problems in
JSON. The endpoint, its sessions and the process are those of an actor. Only the sampling is another one: each
turn is the text ANSWER, so that nothing is learned of an agent that depends on what the policy says.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, cast

from slipstream.actor import episode_run, own_environment, sampler
from slipstream.actor.program.open import open_programs
from slipstream.config import ConfigError, Problem, environments
from slipstream.records import ChatMessage, Completion, FinishReason, Outcome, Prompt, Turn, VersionSpan
from slipstream.telemetry import logs, metrics
from slipstream.tokens import Tokens, load_tokens

KEY: Final = "data.environment.command"
ANSWER: Final = "This is a trial."
TRIAL_SECONDS: Final = 60.0
"""Longest time of the program in a trial."""
MOST_TOKENS: Final = 100_000
"""Tokens of a conversation; the bound of the run is reached with real answers only."""


def main(section: str, model: str, prompt: str) -> int:
    """Print the problems of the program; return the exit status."""
    with contextlib.redirect_stdout(sys.stderr):
        config = environments.ProgramEnvironment.model_validate_json(section)
        tokens = load_tokens(Path(model), max_new_tokens=1) if model else cast(Tokens, ByteTokens())
        problems = asyncio.run(trial(config, tokens, prompt_of(prompt)))
    print(json.dumps([asdict(problem) for problem in problems]))
    return 0


async def trial(config: environments.ProgramEnvironment, tokens: Tokens, prompt: Prompt) -> list[Problem]:
    """Run the program once on a prompt; return what is wrong with it, or a note on what it did."""
    config = config.model_copy(update={"seconds": min(config.seconds, TRIAL_SECONDS)})
    answers = FixedAnswers(tokens)
    bounds = replace(own_environment.episode_bounds(config, max_new_tokens=MOST_TOKENS), context_tokens=None)
    opened = open_programs(
        config,
        tokens=tokens,
        temperature=1.0,
        seed=0,
        run_folder=Path.cwd(),
        metrics=metrics.Metrics(),
        log=logs.Log(pod="trial", level="error"),
    )
    try:
        async with opened as programs:
            played = await episode_run.run_episode(
                programs, prompt, (1,), sample=answers.sample, tokens=tokens, bounds=bounds
            )
    except ConfigError as error:
        return list(error.problems)
    return list(_judged(played, config.seconds))


class FixedAnswers:
    """Samples the same answer each time."""

    def __init__(self, tokens: Tokens) -> None:
        end = sorted(tokens.ends)[:1]
        self._token_ids = (*tokens.encode_text(ANSWER), *end)

    async def sample(
        self, token_ids: tuple[int, ...], max_tokens: int, watch: sampler.Watch | None = None
    ) -> Turn:
        """See Sample."""
        ids = self._token_ids[:max_tokens]
        turn = Turn(
            token_ids=ids,
            logprobs=(0.0,) * len(ids),
            spans=(VersionSpan(version=0, start=0, end=len(ids)),),
            finish_reason=FinishReason.STOP if ids == self._token_ids else FinishReason.LENGTH,
        )
        kept = watch(turn) if watch is not None else None
        return turn if kept is None else turn.until(kept)


class ByteTokens:
    """A tokenizer of bytes without a chat template, in the place of the tiny model's."""

    chat_template = ""
    ends = frozenset({256})
    vocabulary = 257

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """See Tokenizer."""
        return self.encode_text(prompt.text)

    def encode_text(self, text: str) -> tuple[int, ...]:
        """See Tokenizer."""
        return tuple(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        """See Tokenizer."""
        return bytes(each for each in token_ids if each < 256).decode(errors="replace")

    def decode_with_special(self, token_ids: Sequence[int]) -> str:
        """See Tokenizer."""
        return self.decode(token_ids)


def prompt_of(text: str) -> Prompt:
    """Return the prompt of a JSON text: `text` or `messages`, and `fields`."""
    read: dict[str, Any] = json.loads(text)
    messages = tuple(ChatMessage(**message) for message in read["messages"])
    return Prompt(
        prompt_id="trial", task="", answer="", text=read["text"], messages=messages, fields=read["fields"]
    )


def _judged(played: episode_run.Played, seconds: float) -> Iterator[Problem]:
    """Yield the problem of an episode, or a note."""
    completion, turns = played.completion, played.turns
    values = {reward.name: reward.value for reward in completion.rewards}
    if played.ending == "timeout":
        reason = f"the program did not end within {seconds:g} s of the trial, in which it had {turns} turns"
        yield Problem(key=KEY, reason=reason, remedy="look at what it waits for", severity="note")
    elif failure := _failure(completion):
        yield Problem(key=KEY, reason=failure, remedy="run the command in a shell to see why")
    else:
        status = int(values.get("exit_status", 0))
        reason = f"in the trial the program had {turns} turns, and ended with status {status}"
        remedy = "its answers were fixed texts, so an agent may fail for that reason" if status else ""
        yield Problem(key=KEY, reason=reason, remedy=remedy, severity="note")


def _failure(completion: Completion) -> str:
    details = (reward.detail for reward in completion.rewards if reward.outcome is Outcome.ERROR)
    return next(details, "").removeprefix("raised ProgramFailed: ")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
