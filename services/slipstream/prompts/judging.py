"""Questions to a judge (a model) about an answer, and training data of them from another task's prompts.

The training data are the "evaluation fine-tuning" data of Self-Rewarding Language Models, arXiv:2401.10020,
section 2.1, for tasks with a known right answer. Half of the questions show the right answer, and half show
it with one digit changed.
"""

import re
from random import Random

from slipstream.prompts.source import PromptSource
from slipstream.records import ChatMessage, Prompt

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


def judge_question(template: str, prompt: Prompt, *, answer: str) -> Prompt:
    """Return the question about an answer: plain text, or one user message if the prompt has messages."""
    text = fill_template(template, prompt=prompt_as_text(prompt), answer=answer, reference=prompt.answer)
    if not prompt.messages:
        return Prompt(
            prompt_id=prompt.prompt_id,
            task=prompt.task,
            answer=prompt.answer,
            text=text,
            source=prompt.source,
        )
    message = ChatMessage(role="user", content=text)
    return Prompt(
        prompt_id=prompt.prompt_id,
        task=prompt.task,
        answer=prompt.answer,
        messages=(message,),
        source=prompt.source,
    )


def prompt_as_text(prompt: Prompt) -> str:
    """Return a prompt as text for a judge: the text, the only message, or all messages with their roles."""
    if len(prompt.messages) == 1:
        return prompt.messages[0].content
    return prompt.text or "\n\n".join(f"{turn.role}: {turn.content}" for turn in prompt.messages)


def fill_template(template: str, **contents: str) -> str:
    """Replace each {name} of the template by its content; a {name} inside of a content stays as it is."""
    names = re.compile("|".join(rf"\{{{name}\}}" for name in contents))
    return names.sub(lambda name: contents[name[0][1:-1]], template)
