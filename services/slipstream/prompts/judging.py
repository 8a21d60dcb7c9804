"""Training data for a judge: questions whether an answer is right, made from the prompts of another task.

The "evaluation fine-tuning" data of Self-Rewarding Language Models, arXiv:2401.10020, section 2.1, for tasks
with a known right answer. Half of the questions show the right answer, and half show it with one digit
changed.
"""

from random import Random

from slipstream.prompts.judge_question import fill_template
from slipstream.prompts.source import PromptSource
from slipstream.records import Prompt

DIGITS = "0123456789"


class JudgingSource:
    """A PromptSource of questions about answers: one for each prompt of another source, in the same split."""

    def __init__(self, source: PromptSource, *, prompt: str, answers: tuple[str, str], seed: int) -> None:
        self._source = source
        self._prompt = prompt
        self._answers = answers
        self._seed = seed

    @property
    def held_out_size(self) -> int | None:
        """The number of distinct held-out prompts of the other source; None if it is unbounded."""
        return self._source.held_out_size

    def training(self, index: int) -> Prompt:
        """Return a question about an answer to the training prompt with this index."""
        return self._ask(self._source.training(index), index)

    def held_out(self, index: int) -> Prompt:
        """Return a question about an answer to the held-out prompt with this index."""
        return self._ask(self._source.held_out(index), index)

    def demonstration(self, index: int) -> tuple[Prompt, str]:
        """Return the question of `training`, with the right answer to the question."""
        question = self.training(index)
        return question, question.answer

    def _ask(self, prompt: Prompt, index: int) -> Prompt:
        random = Random(f"{self._seed}/judging/{prompt.prompt_id}/{index}")
        right = random.random() < 0.5
        answer = prompt.answer if right else change_one_digit(prompt.answer, random)
        return Prompt(
            prompt_id=f"judging/{prompt.prompt_id}/{answer}",
            task="judging",
            text=fill_template(self._prompt, prompt=prompt.text, answer=answer),
            answer=self._answers[0] if right else self._answers[1],
        )


def change_one_digit(answer: str, random: Random) -> str:
    """Return the answer with one of its digits replaced by another digit."""
    positions = [position for position, character in enumerate(answer) if character in DIGITS]
    position = random.choice(positions)
    digit = random.choice([digit for digit in DIGITS if digit != answer[position]])
    return answer[:position] + digit + answer[position + 1 :]
