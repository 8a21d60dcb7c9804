"""A language model behind an endpoint as a reward."""

import random
import secrets
from collections import Counter
from collections.abc import Sequence
from functools import partial

from slipstream.config.rewards import JudgeConfig
from slipstream.records import Prompt
from slipstream.verifier.adapters import Concurrently
from slipstream.verifier.cache import RewardCache
from slipstream.verifier.judge import question, ranking
from slipstream.verifier.judge.endpoint import ChatEndpoint, JudgeFailed
from slipstream.verifier.resources import Resources
from slipstream.verifier.reward import Answer, Reward, Verdict, failed, invalid

MARKER_BYTES = 12


def judge(config: JudgeConfig, resources: Resources) -> Reward:
    """The reward. Errors: ValueError when httpx is missing, or a file that is named cannot be read."""
    endpoint = ChatEndpoint(config)
    if config.ranks:
        return RankingJudge(config, endpoint)
    return ScoringJudge(config, endpoint, cache=resources.reward_cache(config, reads=_reads))


class ScoringJudge:
    """Asks about each answer by itself. Whatever keeps the judge from a score is an error, never a 0."""

    def __init__(self, config: JudgeConfig, endpoint: ChatEndpoint, *, cache: RewardCache | None) -> None:
        self._config = config
        self._endpoint = endpoint
        self._each = Concurrently(self._one, cache=cache)

    async def score(self, prompt: Prompt, answers: Sequence[Answer]) -> list[Verdict]:
        """The verdicts, in order."""
        return await self._each.score(prompt, answers)

    async def close(self) -> None:
        """End what is under way, and the connections."""
        await self._each.close()
        await self._endpoint.close()

    async def _one(self, prompt: Prompt, answer: Answer) -> Verdict:
        if _too_long(answer, self._config):
            return _invalid(answer, self._config)
        asked = question.messages(self._config, prompt, answer.text, marker=_marker())
        try:
            return Verdict(value=await self._endpoint.ask(asked, partial(question.score_of, self._config)))
        except JudgeFailed as error:
            return failed(str(error))


class RankingJudge:
    """Asks about the answers of a group together; no ranking is an error of all of them."""

    def __init__(self, config: JudgeConfig, endpoint: ChatEndpoint) -> None:
        self._config = config
        self._endpoint = endpoint

    async def score(self, prompt: Prompt, answers: Sequence[Answer]) -> list[Verdict]:
        """The verdicts, in order."""
        fit = [answer.text for answer in answers if not _too_long(answer, self._config)]
        try:
            known = await self._ranked(prompt, fit)
        except JudgeFailed as error:
            known = dict.fromkeys(fit, failed(str(error)))
        return [known.get(answer.text) or _invalid(answer, self._config) for answer in answers]

    async def close(self) -> None:
        """End the connections."""
        await self._endpoint.close()

    async def _ranked(self, prompt: Prompt, texts: Sequence[str]) -> dict[str, Verdict]:
        """The verdict on each text. Errors: JudgeFailed."""
        times = Counter(texts)
        order = list(times)
        random.shuffle(order)
        levels = [list(range(len(order)))]
        if len(order) > 1:
            asked = ranking.messages(self._config, prompt, order, marker=_marker())
            read = partial(ranking.levels_of, self._config, answers=len(order))
            levels = await self._endpoint.ask(asked, read)
        found = ranking.scores(levels, [times[text] for text in order])
        return {text: Verdict(value=value) for text, value in zip(order, found, strict=True)}


def _too_long(answer: Answer, config: JudgeConfig) -> bool:
    return len(answer.text) > config.max_characters


def _invalid(answer: Answer, config: JudgeConfig) -> Verdict:
    return invalid(f"{len(answer.text)} characters; at most {config.max_characters} are judged")


def _marker() -> str:
    return f"=== {secrets.token_hex(MARKER_BYTES)} ==="


def _reads(prompt: Prompt) -> list[str]:
    turns = [part for turn in prompt.messages for part in (turn.role, turn.content)]
    return [prompt.text, prompt.answer, *turns]
