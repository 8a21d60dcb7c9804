"""How held-out prompts are asked: as they stand, or by verbalized sampling.

For evaluation only. The logprob of a drawn answer is not that of its tokens given the prompt, so no ratio can
be formed from it, and training never asks this way.
"""

from collections.abc import Callable
from typing import Protocol

from slipstream.tasks.verbalized import ask, choose, parse
from slipstream.types import Prompt


class Client(Protocol):
    """What the policy is asked, and what of its text is judged."""

    def ask(self, prompt: Prompt) -> Prompt:
        """The prompt as the policy sees it."""

    def answer(self, text: str) -> str:
        """The answer in the text of a completion."""


class Plain:
    """The prompt as it stands; the whole text is the answer."""

    def ask(self, prompt: Prompt) -> Prompt:
        """See Client."""
        return prompt

    def answer(self, text: str) -> str:
        """See Client."""
        return text


class Verbalized:
    """Asks for several candidates at once and judges one of them, drawn by its stated probability."""

    def __init__(self, *, candidates: int, draw: Callable[[], float]) -> None:
        """`draw` gives numbers in [0, 1)."""
        if candidates < 2:
            raise ValueError(f"candidates: got {candidates}, needs at least 2")
        self._candidates = candidates
        self._draw = draw

    def ask(self, prompt: Prompt) -> Prompt:
        """See Client."""
        return ask(prompt, self._candidates)

    def answer(self, text: str) -> str:
        """See Client."""
        return choose(parse(text), self._draw()).text
