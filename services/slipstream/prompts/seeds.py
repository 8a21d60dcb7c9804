"""Prompts that differ in their seed only, for environments that draw the start of an episode from it."""

from random import Random

from slipstream.records import Prompt

NAME = "seeds"
FIELD = "seed"
"""The field of a prompt with its seed."""
HELD_OUT_ONE_IN = 10
HELD_OUT_LIMIT = 2_048


class SeedsSource:
    """A PromptSource over the seeds from 0 to `size` - 1. Invariant: no held-out seed is trained on."""

    def __init__(self, text: str, *, size: int, seed: int) -> None:
        """`size`: at least 2. `seed`: of the order in which training draws the seeds."""
        self._text = text
        self._size = size
        self._seed = seed

    @property
    def held_out_size(self) -> int:
        """Number of held-out seeds, which are the first ones."""
        return min(HELD_OUT_LIMIT, max(1, self._size // HELD_OUT_ONE_IN))

    def training(self, index: int) -> Prompt:
        """Return the training prompt of an index."""
        return self._prompt(Random(f"{self._seed}/{index}").randrange(self.held_out_size, self._size))

    def held_out(self, index: int) -> Prompt:
        """Return a held-out prompt; prompts are distinct below `held_out_size`, and repeat from there on."""
        return self._prompt(index % self.held_out_size)

    def demonstration(self, index: int) -> tuple[Prompt, str]:
        """Errors: ValueError, always: a seed has no known right answer."""
        raise ValueError("data of the kind `seeds` has no demonstrations; imitate rows of a file")

    def _prompt(self, number: int) -> Prompt:
        fields = {FIELD: str(number)}
        return Prompt(prompt_id=f"{NAME}/{number}", task=NAME, text=self._text, answer="", fields=fields)
