"""Demonstrations that a round trains on beside the answers that it keeps.

The third stage of DeepSeek-R1, arXiv:2501.12948, trains on 600,000 answers that rejection sampling kept and
on 200,000 demonstrations of other tasks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream import prompts, records
from slipstream.config.stages import DemonstrationMix
from slipstream.learner.stages.supervised import Pair, unsampled_answer
from slipstream.tokens import PromptTooLong, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrations:
    """The demonstrations of a round: pairs to train on, and the same as rows of the round's file.

    `unfit` counts demonstrations whose prompt does not fit the context.
    """

    pairs: Sequence[Pair] = ()
    rows: Sequence[Mapping[str, object]] = ()
    unfit: int = 0


class DemonstrationSampler:
    """Draws demonstrations for each round.

    Invariant: the demonstrations of a round depend on the data, the seed, the number of the round and the
    number of kept answers only, so a repeated round draws the same. Rounds draw from different positions of
    an endless source; a source of rows is shuffled by the seed.
    """

    def __init__(
        self, mix: DemonstrationMix, *, source: prompts.PromptSource, tokens: Tokens, most_answers: int
    ) -> None:
        """Take the largest number of answers that a round can keep, `most_answers`."""
        self._mix = mix
        self._source = source
        self._tokens = tokens
        self._stride = mix.beside(most_answers)

    def draw(self, version: int, *, answers: int) -> Demonstrations:
        """Return the demonstrations beside `answers` kept answers, in the round that starts at `version`."""
        first = version * self._stride
        pairs: list[Pair] = []
        rows: list[Mapping[str, object]] = []
        unfit = 0
        for index in range(first, first + self._mix.beside(answers)):
            prompt, text = self._source.demonstration(index)
            try:
                prompt_token_ids = self._tokens.encode(prompt)
            except PromptTooLong:
                unfit += 1
                continue
            pair = Pair(
                prompt_token_ids=prompt_token_ids,
                answer=unsampled_answer(self._tokens.encode_answer(text, prompt=prompt)),
            )
            pairs.append(pair)
            rows.append(_row(prompt, text, pair))
        return Demonstrations(pairs=pairs, rows=rows, unfit=unfit)


def _row(prompt: records.Prompt, text: str, pair: Pair) -> dict[str, object]:
    return {
        "origin": "demonstration",
        "prompt": prompt_text(prompt),
        "answer": text,
        "prompt_token_ids": list(pair.prompt_token_ids),
        "token_ids": list(pair.answer.token_ids),
        "rewards": {},
    }


def prompt_text(prompt: records.Prompt) -> object:
    """Return a prompt as it is written to files: text, or a list of messages."""
    return prompt.text or [{"role": turn.role, "content": turn.content} for turn in prompt.messages]
