"""The reward `judge`: a language model behind an endpoint scores or ranks answers."""

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
    """Make the reward. Errors: ValueError if a file that the configuration names cannot be read."""
    endpoint = ChatEndpoint(config)
    if config.ranks:
        return RankingJudge(config, endpoint)
    return ScoringJudge(config, endpoint, cache=resources.reward_cache(config, reads=_reads))


class ScoringJudge:
    """Asks the judge for a score of each answer. A reply without a score is an error, never a 0."""

    def __init__(self, config: JudgeConfig, endpoint: ChatEndpoint, *, cache: RewardCache | None) -> None:
        self._config = config
        self._endpoint = endpoint
        self._each = Concurrently(self._one, cache=cache)

    async def score(self, prompt: Prompt, answers: Sequence[Answer]) -> list[Verdict]:
        """Return the verdicts, in order."""
        return await self._each.score(prompt, answers)

    async def close(self) -> None:
        """Cancel running calls, and close the connections."""
        await self._each.close()
        await self._endpoint.close()

    async def _one(self, prompt: Prompt, answer: Answer) -> Verdict:
        if _too_long(answer, self._config):
            return _invalid(answer, self._config)
        messages = question.messages(self._config, prompt, answer.text, marker=_marker())
        try:
            return Verdict(value=await self._endpoint.ask(messages, partial(question.score_of, self._config)))
        except JudgeFailed as error:
            return failed(str(error))


class RankingJudge:
    """Asks the judge to rank the answers of a group. Without a ranking, all answers are errors."""

    def __init__(self, config: JudgeConfig, endpoint: ChatEndpoint) -> None:
        self._config = config
        self._endpoint = endpoint

    async def score(self, prompt: Prompt, answers: Sequence[Answer]) -> list[Verdict]:
        """Return the verdicts, in order."""
        texts = [answer.text for answer in answers if not _too_long(answer, self._config)]
        try:
            verdicts = await self._ranked(prompt, texts)
        except JudgeFailed as error:
            verdicts = dict.fromkeys(texts, failed(str(error)))
        return [verdicts.get(answer.text) or _invalid(answer, self._config) for answer in answers]

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoint.close()

    async def _ranked(self, prompt: Prompt, texts: Sequence[str]) -> dict[str, Verdict]:
        """Return the verdict on each text. Errors: JudgeFailed."""
        times = Counter(texts)
        order = list(times)
        random.shuffle(order)
        levels = [list(range(len(order)))]
        if len(order) > 1:
            messages = ranking.messages(self._config, prompt, order, marker=_marker())
            read = partial(ranking.levels_of, self._config, answers=len(order))
            levels = await self._endpoint.ask(messages, read)
        scores = ranking.scores(levels, [times[text] for text in order])
        return {text: Verdict(value=score) for text, score in zip(order, scores, strict=True)}


def _too_long(answer: Answer, config: JudgeConfig) -> bool:
    return len(answer.text) > config.max_characters


def _invalid(answer: Answer, config: JudgeConfig) -> Verdict:
    return invalid(f"{len(answer.text)} characters; at most {config.max_characters} are judged")


def _marker() -> str:
    return f"=== {secrets.token_hex(MARKER_BYTES)} ==="


def _reads(prompt: Prompt) -> list[str]:
    turns = [part for turn in prompt.messages for part in (turn.role, turn.content)]
    return [prompt.text, prompt.answer, *turns]
