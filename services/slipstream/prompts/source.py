"""The interface of prompt sources, from which replay leases prompts."""

from typing import Protocol

from slipstream.records import Prompt


class PromptSource(Protocol):
    """Prompts by index. Invariant: a pure function of (seed, split, index).

    The same index has the same prompt in every replica and at any time, and no held-out prompt is
    a training prompt. Indices start at 0 and are unbounded.
    """

    @property
    def held_out_size(self) -> int | None:
        """Number of distinct held-out prompts; None if it is unbounded."""
        ...

    def training(self, index: int) -> Prompt:
        """Return the training prompt of an index."""
        ...

    def held_out(self, index: int) -> Prompt:
        """Return a held-out prompt; prompts are distinct below `held_out_size`, and repeat from there on."""
        ...

    def demonstration(self, index: int) -> tuple[Prompt, str]:
        """Return the training prompt of an index, with a correct answer."""
        ...
