"""A language model behind an endpoint as a reward."""

import secrets
from collections.abc import Sequence
from functools import partial

from slipstream.config.rewards import JudgeConfig
from slipstream.types import Prompt
from slipstream.verifier.adapters import Concurrently
from slipstream.verifier.judge.endpoint import ChatEndpoint, JudgeFailed
from slipstream.verifier.judge.question import messages, score_of
from slipstream.verifier.reward import Answer, Verdict, failed, invalid
from slipstream.verifier.surroundings import Surroundings

MARKER_BYTES = 12


def judge(config: JudgeConfig, surroundings: Surroundings) -> "Judged":
    """The reward. Errors: ValueError when httpx is missing, or a file that is named cannot be read."""
    return Judged(config, surroundings)


class Judged:
    """Asks about each answer by itself. Whatever keeps the judge from a score is an error, never a 0."""

    def __init__(self, config: JudgeConfig, surroundings: Surroundings) -> None:
        self._config = config
        self._endpoint = ChatEndpoint(config)
        self._each = Concurrently(self._one, memory=surroundings.memory(config, reads=_reads))

    async def score(self, prompt: Prompt, answers: Sequence[Answer]) -> list[Verdict]:
        """The verdicts, in order."""
        return await self._each.score(prompt, answers)

    async def close(self) -> None:
        """End what is under way, and the connections."""
        await self._each.close()
        await self._endpoint.close()

    async def _one(self, prompt: Prompt, answer: Answer) -> Verdict:
        if len(answer.text) > self._config.max_characters:
            return invalid(f"{len(answer.text)} characters; at most {self._config.max_characters} are judged")
        marker = f"=== {secrets.token_hex(MARKER_BYTES)} ==="
        asked = messages(self._config, prompt, answer.text, marker=marker)
        try:
            return Verdict(value=await self._endpoint.ask(asked, partial(score_of, self._config)))
        except JudgeFailed as error:
            return failed(str(error))


def _reads(prompt: Prompt) -> list[str]:
    turns = [part for turn in prompt.messages for part in (turn.role, turn.content)]
    return [prompt.text, prompt.answer, *turns]
