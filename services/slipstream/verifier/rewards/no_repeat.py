"""The reward `no_repeat`: whether an answer occurs once in its group."""

from collections import Counter
from collections.abc import Sequence

from slipstream.config.rewards.shapes import NoRepeatConfig
from slipstream.records import Prompt
from slipstream.verifier.resources import Resources
from slipstream.verifier.reward import Answer, Reward, Verdict, invalid
from slipstream.verifier.rewards.canonical import beside_the_loop, canonical
from slipstream.verifier.rewards.ngrams import MAX_CHARACTERS


def no_repeat(config: NoRepeatConfig, resources: Resources) -> Reward:
    """Make the reward."""
    return NoRepeat(config)


class NoRepeat:
    """Scores 1 for an answer that occurs once; `duplicates` says what equal answers get."""

    def __init__(self, config: NoRepeatConfig) -> None:
        self._config = config

    async def score(self, prompt: Prompt, answers: Sequence[Answer]) -> list[Verdict]:
        """Return the verdicts, in order."""
        texts = [answer.text for answer in answers]
        return await beside_the_loop(lambda: self._verdicts(texts), characters=sum(map(len, texts)))

    async def close(self) -> None:
        """Do nothing: the reward holds nothing."""

    def _verdicts(self, texts: Sequence[str]) -> list[Verdict]:
        comparable = [self._comparable(text) if len(text) <= MAX_CHARACTERS else None for text in texts]
        times, before = Counter(comparable), Counter[str | None]()
        verdicts = []
        for text, original in zip(comparable, texts, strict=True):
            verdicts.append(self._one(text, len(original), times[text], before[text]))
            before[text] += 1
        return verdicts

    def _one(self, text: str | None, length: int, times: int, before: int) -> Verdict:
        if text is None:
            return invalid(f"{length} characters; at most {MAX_CHARACTERS} are read")
        if not text:
            return invalid("empty answer")
        score = {"later": float(not before), "all": float(times == 1), "share": 1 / times}
        return Verdict(value=score[self._config.duplicates])

    def _comparable(self, text: str) -> str:
        return canonical(" ".join(text.split()), ignore_case=self._config.ignore_case)
