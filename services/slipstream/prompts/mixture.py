"""Prompts of several sources, in the order that their shares determine."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slipstream.prompts.shares import Shares
from slipstream.prompts.source import PromptSource
from slipstream.records import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSource:
    """One source of a mixture."""

    name: str
    share: float
    prompts: PromptSource
    prefix: str = ""
    """Start of its prompt ids, where another source may have the same ones."""


class MixtureSource:
    """A PromptSource over several sources. Its prompt of an index is the next one of the source that the
    shares give to the index, so a source goes on where it was, whatever happens to prompts of the others.

    Held-out prompts have the same shares. They end before one of the sources repeats.
    """

    def __init__(self, sources: Sequence[MixedSource]) -> None:
        self._sources = sources
        self._shares = Shares([source.share for source in sources])

    @property
    def held_out_size(self) -> int | None:
        """Number of held-out prompts before one of the sources repeats; one less, or a few, than the most
        that is possible if the shares differ."""
        return min(
            (
                self._shares.draws_before(place, size)
                for place, source in enumerate(self._sources)
                if (size := source.prompts.held_out_size) is not None
            ),
            default=None,
        )

    def training(self, index: int) -> Prompt:
        """Return the training prompt of an index."""
        source, position = self._drawn(index)
        return _of(source, source.prompts.training(position))

    def held_out(self, index: int) -> Prompt:
        """Return the held-out prompt of an index."""
        source, position = self._drawn(index)
        return _of(source, source.prompts.held_out(position))

    def demonstration(self, index: int) -> tuple[Prompt, str]:
        """Return the training prompt of an index, with a correct answer."""
        source, position = self._drawn(index)
        prompt, text = source.prompts.demonstration(position)
        return _of(source, prompt), text

    def _drawn(self, index: int) -> tuple[MixedSource, int]:
        place, position = self._shares.draw(index)
        return self._sources[place], position


def _of(source: MixedSource, prompt: Prompt) -> Prompt:
    return replace(prompt, source=source.name, prompt_id=source.prefix + prompt.prompt_id)
