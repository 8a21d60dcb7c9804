"""Curves, bars and histograms of Unicode blocks, as plain text."""

from collections.abc import Iterator, Mapping, Sequence

Points = Sequence[tuple[int, float]]
"""Pairs of step and value, in the order of steps."""
BLOCKS = " ▁▂▃▄▅▆▇█"
LEVELS = len(BLOCKS) - 1
"""Heights of a character."""


def curve(
    points: Points, *, width: int, span: tuple[int, int], floor: float | None = None, rows: int = 1
) -> list[str]:
    """Return `rows` lines of `width` characters, the top line first.

    `span`: first and last step of the axis, so that several curves can share an axis. A character shows the
    mean of its steps, or else the value before them. The scale goes from `floor`, or else from the least
    value, to the largest.
    """
    cells = list(_resampled(points, width=width, span=span))
    values = [value for value in cells if value is not None]
    if not values:
        return [" " * width] * rows
    low = min(values) if floor is None else floor
    heights = [_height(value, low=low, high=max(values), levels=LEVELS * rows) for value in cells]
    return [_line(heights, base=LEVELS * row) for row in reversed(range(rows))]


def histogram(counts: Mapping[str, int]) -> str:
    """Return the buckets up to the last one that is not empty, each with a block: "0 ▂  1 █  2 ▁"."""
    names = list(counts)
    while names and not counts[names[-1]]:
        names.pop()
    largest = max(counts.values(), default=0)
    return "  ".join(f"{name} {_block(counts[name], largest)}" for name in names)


def stacked_bar(shares: Sequence[float], glyphs: str, *, width: int) -> list[str]:
    """Return a part for each share, which are `width` characters together if the shares sum to 1."""
    ends = [round(width * sum(shares[: index + 1])) for index in range(len(shares))]
    return [glyph * (end - start) for glyph, start, end in zip(glyphs, [0, *ends], ends, strict=False)]


def _resampled(points: Points, *, width: int, span: tuple[int, int]) -> Iterator[float | None]:
    first, last = span
    cells: list[list[float]] = [[] for _ in range(width)]
    for step, value in points:
        index = width * (step - first) // max(last - first + 1, 1)
        cells[min(max(index, 0), width - 1)].append(value)
    before: float | None = None
    for cell in cells:
        before = sum(cell) / len(cell) if cell else before
        yield before


def _height(value: float | None, *, low: float, high: float, levels: int) -> int:
    """Return a height from 1 to `levels`; 0 without a value."""
    if value is None:
        return 0
    if high <= low:
        return 1 if value == 0 else (levels + 1) // 2
    return 1 + round((levels - 1) * min(max((value - low) / (high - low), 0.0), 1.0))


def _line(heights: Sequence[int], *, base: int) -> str:
    return "".join(BLOCKS[min(max(height - base, 0), LEVELS)] for height in heights)


def _block(count: int, largest: int) -> str:
    return BLOCKS[max(1, round(LEVELS * count / largest))] if count > 0 else "·"
