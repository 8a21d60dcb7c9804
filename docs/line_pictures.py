"""Pictures of two lines as SVG, made without a library: so they are small, and do not depend on a version."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Final

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 262, 46, 14, 30, 40
STYLES: Final = (("#2f7ed8", ""), ("#e0762c", ' stroke-dasharray="6 4"'))
"""Colour and dashes of the two lines: visible on a light and on a dark page."""
GREY: Final = "#888"
JUMP: Final = 0.06
"""Change of a curve between two points, as a share of the axis, that interrupts its line."""
TICKS: Final = (0.25, 0.5, 1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Two curves over the same points."""

    title: str
    points: Sequence[float]
    ticks: Sequence[float]
    curves: Sequence[Sequence[float]]
    labels: Sequence[str]
    across: str
    """Name of the horizontal axis."""
    up: str
    """Name of the vertical axis."""
    logarithmic: bool = False
    jumps: bool = True
    """Whether a line is interrupted where its curve jumps."""
    most: float = field(init=False)
    least: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "most", 1.1 * max(map(max, self.curves)))
        object.__setattr__(self, "least", 1.1 * min(0.0, *map(min, self.curves)))

    def svg(self) -> str:
        """Return the picture."""
        body = [*self._frame(), *self._lines(), *self._legend()]
        size = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
        return "\n".join([head, f"<title>{self.title}</title>", *body, "</svg>", ""])

    def _x(self, point: float) -> str:
        first, last = self.points[0], self.points[-1]
        if self.logarithmic:
            first, point, last = log(first), log(point), log(last)
        return f"{LEFT + (point - first) / (last - first) * (WIDTH - LEFT - RIGHT):.1f}"

    def _y(self, value: float) -> str:
        share = (value - self.least) / (self.most - self.least)
        return f"{HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM):.1f}"

    def _frame(self) -> Iterator[str]:
        """Yield the axes with their ticks."""
        bottom, right = self._y(self.least), self._x(self.points[-1])
        yield f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="{GREY}"/>'
        for tick in self.ticks:
            x = self._x(tick)
            yield f'<path d="M{x} {TOP}V{bottom}" stroke="{GREY}" stroke-opacity="0.25"/>'
            yield f'<text x="{x}" y="{HEIGHT - 22}" fill="{GREY}" text-anchor="middle">{tick:g}</text>'
        for height in self._heights():
            y = self._y(height)
            yield f'<path d="M{LEFT} {y}H{right}" stroke="{GREY}" stroke-opacity="0.25"/>'
            yield f'<text x="{LEFT - 6}" y="{y}" dy="4" fill="{GREY}" text-anchor="end">{height:g}</text>'
        middle = f'fill="{GREY}" text-anchor="middle"'
        turned = f'transform="rotate(-90 12 {HEIGHT // 2})"'
        yield f'<text x="{WIDTH // 2}" y="{HEIGHT - 4}" {middle}>{self.across}</text>'
        yield f'<text x="12" y="{HEIGHT // 2}" {middle} {turned}>{self.up}</text>'

    def _heights(self) -> list[float]:
        """Return a few round heights between the ends of the vertical axis, with 0."""
        step = next(step for step in TICKS if (self.most - self.least) / step < 5)
        return [step * number for number in range(int(self.least / step), int(self.most / step) + 1)]

    def _lines(self) -> Iterator[str]:
        xs = [self._x(point) for point in self.points]
        for (colour, dashes), curve in zip(STYLES, self.curves, strict=True):
            path = self._line(xs, curve)
            yield f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'

    def _line(self, xs: Sequence[str], curve: Sequence[float]) -> str:
        """Return the path of a curve, without points inside of flat parts."""
        ys = [self._y(value) for value in curve]
        path = f"M{xs[0]} {ys[0]}"
        for index in range(1, len(xs)):
            is_flat = ys[index - 1] == ys[index] == (*ys, None)[index + 1]
            if not is_flat:
                leap = abs(curve[index] - curve[index - 1]) > JUMP * (self.most - self.least)
                path += f"{'M' if leap and self.jumps else 'L'}{xs[index]} {ys[index]}"
        return path

    def _legend(self) -> Iterator[str]:
        """Yield the names of the two lines."""
        for number, (name, (colour, dashes)) in enumerate(zip(self.labels, STYLES, strict=True)):
            x, y = LEFT + 4 + (48 + 6 * max(map(len, self.labels))) * number, TOP - 14
            yield f'<path d="M{x} {y}h26" stroke="{colour}" stroke-width="2"{dashes}/>'
            yield f'<text x="{x + 32}" y="{y + 4}" fill="{GREY}">{name}</text>'
