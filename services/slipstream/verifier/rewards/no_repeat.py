"""Does an answer come once in its group?"""

import unicodedata
from collections import Counter
from collections.abc import Sequence

from slipstream.config.rewards.shapes import NoRepeatConfig
from slipstream.types import Prompt
from slipstream.verifier.reward import Answer, Verdict, invalid


class NoRepeat:
    """1 for an answer that comes once; what equal ones get is configured. Cheap: it counts texts."""

    def __init__(self, config: NoRepeatConfig) -> None:
        self._config = config

    async def score(self, prompt: Prompt, answers: Sequence[Answer]) -> list[Verdict]:
        """The verdicts, in order."""
        texts = [unicodedata.normalize("NFC", " ".join(answer.text.split())) for answer in answers]
        texts = [text.casefold() for text in texts] if self._config.ignore_case else texts
        times, before = Counter(texts), Counter[str]()
        verdicts = []
        for text in texts:
            later = before[text] > 0
            before[text] += 1
            score = {"later": float(not later), "all": float(times[text] == 1), "share": 1 / times[text]}
            verdicts.append(
                Verdict(value=score[self._config.duplicates]) if text else invalid("empty answer")
            )
        return verdicts

    async def close(self) -> None:
        """Nothing is held."""
