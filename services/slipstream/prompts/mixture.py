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
    """Prefix of its prompt ids; empty unless another source may have the same ids."""


class MixtureSource:
    """A PromptSource that draws from several sources in fixed shares.

    The shares decide which source has an index, and the index is the next prompt of this source. So the order
    of a source's prompts does not depend on what happens to prompts of other sources. Held-out prompts have
    the same shares, and end before the first source repeats.
    """

    def __init__(self, sources: Sequence[MixedSource]) -> None:
        self._sources = sources
        self._shares = Shares([source.share for source in sources])

    @property
    def held_out_size(self) -> int | None:
        """Number of held-out prompts before the first source repeats.

        With unequal shares it may be a few less than the largest such number.
        """
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
