"""Questions whether an answer is right, made from a task: what teaches a model to judge its own answers.

The "evaluation fine-tuning" data of Self-Rewarding Language Models, arXiv:2401.10020, section 2.1, for tasks
whose right answers are known: half of the answers shown are right, and half have one digit changed.
"""

from random import Random

from slipstream.prompts.judge_question import fill_template
from slipstream.prompts.source import PromptSource
from slipstream.records import Prompt

DIGITS = "0123456789"


class JudgingSource:
    """A PromptSource over the prompts of another: the same split, one question for each prompt."""

    def __init__(self, source: PromptSource, *, prompt: str, answers: tuple[str, str], seed: int) -> None:
        self._source = source
        self._prompt = prompt
        self._answers = answers
        self._seed = seed

    @property
    def held_out_size(self) -> int | None:
        """As many as the source has."""
        return self._source.held_out_size

    def training(self, index: int) -> Prompt:
        """A question about a training prompt of the source."""
        return self._ask(self._source.training(index), index)

    def held_out(self, index: int) -> Prompt:
        """A question about a held-out prompt of the source."""
        return self._ask(self._source.held_out(index), index)

    def demonstration(self, index: int) -> tuple[Prompt, str]:
        """The training question of the same index, with its answer."""
        asked = self.training(index)
        return asked, asked.answer

    def _ask(self, prompt: Prompt, index: int) -> Prompt:
        random = Random(f"{self._seed}/judging/{prompt.prompt_id}/{index}")
        right = random.random() < 0.5
        given = prompt.answer if right else change_one_digit(prompt.answer, random)
        return Prompt(
            prompt_id=f"judging/{prompt.prompt_id}/{given}",
            task="judging",
            text=fill_template(self._prompt, prompt=prompt.text, answer=given),
            answer=self._answers[0] if right else self._answers[1],
        )


def change_one_digit(answer: str, random: Random) -> str:
    """The answer with one of its digits replaced by another one."""
    places = [place for place, character in enumerate(answer) if character in DIGITS]
    place = random.choice(places)
    digit = random.choice([digit for digit in DIGITS if digit != answer[place]])
    return answer[:place] + digit + answer[place + 1 :]
