"""A prompt source over several: each in turn, equally often."""

from collections.abc import Sequence

from slipstream.prompts.source import PromptSource
from slipstream.records import Prompt


class MixtureSource:
    """A PromptSource whose prompt `i` is prompt `i // n` of source `i mod n`, of `n` sources.

    Held-out prompts end where the smallest source repeats, so that every source weighs the same in them.
    """

    def __init__(self, sources: Sequence[PromptSource]) -> None:
        self._sources = sources

    @property
    def held_out_size(self) -> int | None:
        """How many held-out prompts there are before one of the sources repeats."""
        sizes = [size for source in self._sources if (size := source.held_out_size) is not None]
        return min(sizes) * len(self._sources) if sizes else None

    def training(self, index: int) -> Prompt:
        """A prompt to train on."""
        source, place = self._place(index)
        return source.training(place)

    def held_out(self, index: int) -> Prompt:
        """A prompt that is never trained on."""
        source, place = self._place(index)
        return source.held_out(place)

    def demonstration(self, index: int) -> tuple[Prompt, str]:
        """The training prompt of the same index, with a correct answer to it."""
        source, place = self._place(index)
        return source.demonstration(place)

    def _place(self, index: int) -> tuple[PromptSource, int]:
        place, which = divmod(index, len(self._sources))
        return self._sources[which], place
