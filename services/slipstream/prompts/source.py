"""What the replay service draws prompts from."""

from typing import Protocol

from slipstream.records import Prompt


class PromptSource(Protocol):
    """Prompts by index. Invariant: a pure function of (seed, split, index).

    The same index gives the same prompt in every replica and at any time, and no held-out prompt is
    ever a training prompt. Indices count from 0 and have no end.
    """

    @property
    def held_out_size(self) -> int | None:
        """How many distinct held-out prompts there are; None when they do not end."""
        ...

    def training(self, index: int) -> Prompt:
        """A prompt to train on."""
        ...

    def held_out(self, index: int) -> Prompt:
        """A prompt that is never trained on; distinct below `held_out_size`, repeated from there on."""
        ...

    def demonstration(self, index: int) -> tuple[Prompt, str]:
        """The training prompt of the same index, with a correct answer to it."""
        ...
