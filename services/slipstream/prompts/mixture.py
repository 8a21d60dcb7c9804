"""Prompts of several sources, in the order that their shares determine."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd, lcm

from slipstream.prompts.source import PromptSource
from slipstream.records import Prompt


class Shares:
    """A pure function from the number of a draw to a source and its position in that source.

    Invariant: the draws of each source have the positions 0, 1, 2, ... in order. After W draws, W being the
    sum of the shares as whole numbers without a common divisor, the order of the sources begins anew; at most
    that many draws are remembered.

    Every prefix of the draws has the shares. After any number k of draws, a source of the share s has been
    taken between s k - b and s k + b times, with b = 1 - 1 / (2 n - 2) < 1 for n sources. The j-th draw of a
    source (j from 0) may therefore not come before

        release(j)  = ceil((j + 1 / (2 n - 2)) / s)         draws, counted from 1, have been made,
        deadline(j) = floor((j + b) / s) + 1                is its last chance,

    and of the sources that are released, that with the earliest deadline is taken. Earliest deadline first
    meets all deadlines where any order does, and one does: R. Tijdeman, The chairman assignment problem,
    Discrete Mathematics 32 (1980).
    """

    def __init__(self, shares: Sequence[float]) -> None:
        """`shares`: positive, in any unit; a decimal number is taken as it is written."""
        fractions = [Fraction(repr(share)) for share in shares]
        denominator = lcm(*(part.denominator for part in fractions))
        integers = [int(part * denominator) for part in fractions]
        self._weights = [weight // gcd(*integers) for weight in integers]
        self._period = sum(self._weights)
        self._slack = max(1, 2 * len(shares) - 2)
        self._counts = [0] * len(shares)
        self._windows = [self._window(source, 0) for source in range(len(shares))]
        self._sources = array("H")
        self._positions = array("q")

    def draw(self, number: int) -> tuple[int, int]:
        """Return the source of a draw, and the position in the source; both count from 0."""
        round_, within = divmod(number, self._period)
        for now in range(len(self._sources) + 1, within + 2):
            self._append(now)
        source = self._sources[within]
        return source, round_ * self._weights[source] + self._positions[within]

    def draws_before(self, source: int, position: int) -> int:
        """Return a number of draws after which the source certainly has not reached a position.

        It is the largest such number if all shares are equal.
        """
        return self._window(source, position)[0] - 1

    def _append(self, now: int) -> None:
        """Choose the source of the draw `now`, counted from 1.

        A plain loop, because it must be fast: a resume repeats up to a million draws.
        """
        source, earliest = -1, 0
        for place, (release, deadline) in enumerate(self._windows):
            if release <= now and (source < 0 or deadline < earliest):
                source, earliest = place, deadline
        self._sources.append(source)
        self._positions.append(self._counts[source])
        self._counts[source] += 1
        self._windows[source] = self._window(source, self._counts[source])

    def _window(self, source: int, position: int) -> tuple[int, int]:
        """Return release and deadline of a draw of a source, in whole numbers."""
        divisor = self._weights[source] * self._slack
        release = -(-self._period * (position * self._slack + 1) // divisor)
        deadline = self._period * ((position + 1) * self._slack - 1) // divisor + 1
        return release, deadline


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
