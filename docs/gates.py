"""Writes the reference parts of docs/objectives/*.md and their pictures: `make docs`; --check only compares.

A page has two markers for each objective or correction, `<!-- objective: NAME -->` and
`<!-- end of objective: NAME -->`. Between them come the picture of the gate, the clip fractions of two runs,
the parameters and the presets. The picture shows the gates that `policy_loss` returns for sequences of one
token. It is an SVG of two lines, made without a library: so it is small, and the same with all versions of
all packages.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from slipstream.algorithms import PRESETS, policy_loss
from slipstream.algorithms.presets.preset import bound_of
from slipstream.algorithms.spec import CORRECTIONS, OBJECTIVES
from slipstream.cli.algorithms import parameters

PAGES: Final = Path(__file__).parent / "objectives"
FRACTIONS: Final = Path(__file__).parent / "objectives.md"
BLOCK: Final = re.compile(r"<!-- (\w+): (\w+) -->\n.*?<!-- end of \1: \2 -->", re.DOTALL)
NARROW: Final = {"gspo", "gspo_token", "geometric_rejection"}
FAR: Final = {"cispo", "dppo", "icepop"}
"""Kinds whose bounds are invisible on the usual axis: a thousandth from 1, or above 4."""
NOT_DRAWN: Final = {"m2po", "outlier_tokens"}
"""Corrections whose weight depends on other tokens, or is 1 on the whole axis."""
ROLLOUT_PROBABILITY: Final = 0.1
"""Probability of the token under the policy that sampled; only dppo and ipo read it."""
POINTS: Final = 241
JUMP: Final = 0.06
"""Change of the gate between two points, as a share of the axis, that interrupts the line."""
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 262, 46, 14, 30, 40
STYLES: Final = ((1, "A &gt; 0", "#2f7ed8", ""), (-1, "A &lt; 0", "#e0762c", ' stroke-dasharray="6 4"'))
"""Sign of the advantage, label, colour and dashes: visible on a light and on a dark page."""
GREY: Final = "#888"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The axis of the ratio."""

    ratios: torch.Tensor
    ticks: Sequence[float]
    logarithmic: bool

    def position(self, ratio: float) -> float:
        """Return the place of a ratio on the axis, from 0 to 1."""
        ends = self.ratios[[0, -1]]
        values = torch.stack([ends[0], torch.tensor(ratio, dtype=torch.float64), ends[1]])
        low, point, high = (values.log() if self.logarithmic else values).tolist()
        return (point - low) / (high - low)


USUAL: Final = Axis(
    ratios=torch.logspace(-2, 2, POINTS, base=2, dtype=torch.float64),
    ticks=(0.25, 0.5, 0.8, 1, 1.25, 2, 4),
    logarithmic=True,
)
WIDE: Final = Axis(
    ratios=torch.logspace(-3, 3, POINTS, base=2, dtype=torch.float64),
    ticks=(0.125, 0.25, 0.5, 1, 2, 4, 8),
    logarithmic=True,
)
CLOSE: Final = Axis(
    ratios=torch.linspace(0.998, 1.002, POINTS, dtype=torch.float64),
    ticks=(0.998, 0.999, 1, 1.001, 1.002),
    logarithmic=False,
)


def axis_of(kind: str) -> Axis:
    """Return the axis on which the bounds of a kind are visible."""
    return CLOSE if kind in NARROW else WIDE if kind in FAR else USUAL


def gates(axis: str, kind: str, ratios: torch.Tensor, sign: int) -> list[float]:
    """Return the gate weight at each ratio, for an advantage of 1 or -1.

    Each ratio is that of a sequence of one token. For a correction it is the ratio of the learner's policy
    before the batch to the policy that sampled.
    """
    rollout_T = torch.full_like(ratios, ROLLOUT_PROBABILITY).log()
    logprobs_T = rollout_T + ratios.log()
    spec: dict[str, Any] = {"objective": {"kind": kind}, "aggregation": "seq_mean_token_mean"}
    old_T = rollout_T
    if axis == "correction":
        spec |= {"objective": {"kind": "is", "anchor": "batch"}, "correction": {"kind": kind}}
        old_T = logprobs_T
    loss = policy_loss(
        spec,
        logprobs=logprobs_T.clone().requires_grad_(),
        rollout_logprobs=rollout_T,
        old_logprobs=old_T,
        advantages=torch.full_like(ratios, sign),
        mask=torch.ones_like(ratios),
        sequence_ids=torch.arange(len(ratios)),
        router_shift=torch.ones_like(ratios),
    )
    weights: list[float] = loss.gates_T.tolist()
    return weights


def picture(axis: str, kind: str) -> str:
    """Return the SVG of the gate of a kind."""
    places = axis_of(kind)
    curves = [gates(axis, kind, places.ratios, sign) for sign, *_ in STYLES]
    most = 1.1 * max(max(curve) for curve in curves)
    body = [*frame(places, most), *lines(places, curves, most), *legend()]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
    return "\n".join(
        [f'{head}font-size="12">', f"<title>{kind}: gate against ratio</title>", *body, "</svg>", ""]
    )


def x_of(place: float) -> str:
    """Return the coordinate of a place on the axis of the ratio."""
    return f"{LEFT + place * (WIDTH - LEFT - RIGHT):.1f}"


def y_of(gate: float, most: float) -> str:
    """Return the coordinate of a gate weight."""
    return f"{HEIGHT - BOTTOM - gate / most * (HEIGHT - TOP - BOTTOM):.1f}"


def frame(places: Axis, most: float) -> Iterator[str]:
    """Yield the axes with their ticks."""
    bottom, right = y_of(0, most), x_of(1)
    yield f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="{GREY}"/>'
    for tick in places.ticks:
        x = x_of(places.position(tick))
        yield f'<path d="M{x} {TOP}V{bottom}" stroke="{GREY}" stroke-opacity="0.25"/>'
        yield f'<text x="{x}" y="{HEIGHT - 22}" fill="{GREY}" text-anchor="middle">{tick:g}</text>'
    for gate in heights(most):
        y = y_of(gate, most)
        yield f'<path d="M{LEFT} {y}H{right}" stroke="{GREY}" stroke-opacity="0.25"/>'
        yield f'<text x="{LEFT - 6}" y="{y}" dy="4" fill="{GREY}" text-anchor="end">{gate:g}</text>'
    yield f'<text x="{WIDTH // 2}" y="{HEIGHT - 4}" fill="{GREY}" text-anchor="middle">ratio</text>'
    yield f'<text x="12" y="{HEIGHT // 2}" fill="{GREY}" text-anchor="middle" ' + (
        f'transform="rotate(-90 12 {HEIGHT // 2})">gate weight</text>'
    )


def heights(most: float) -> list[float]:
    """Return four or fewer round gate weights below the largest one, with 0."""
    step = next(step for step in (0.25, 0.5, 1, 2, 4, 8) if most / step < 5)
    return [step * number for number in range(int(most / step) + 1)]


def lines(places: Axis, curves: Sequence[Sequence[float]], most: float) -> Iterator[str]:
    """Yield the two lines."""
    xs = [x_of(places.position(ratio)) for ratio in places.ratios.tolist()]
    for (_, _, colour, dashes), curve in zip(STYLES, curves, strict=True):
        path = line(xs, curve, most)
        yield f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'


def line(xs: Sequence[str], curve: Sequence[float], most: float) -> str:
    """Return the path of a curve, interrupted where the gate jumps, without points inside of flat parts."""
    ys = [y_of(gate, most) for gate in curve]
    path = f"M{xs[0]} {ys[0]}"
    for index in range(1, len(xs)):
        is_flat = ys[index - 1] == ys[index] == (*ys, None)[index + 1]
        if not is_flat:
            jumps = abs(curve[index] - curve[index - 1]) > JUMP * most
            path += f"{'M' if jumps else 'L'}{xs[index]} {ys[index]}"
    return path


def legend() -> Iterator[str]:
    """Yield the names of the two lines."""
    for number, (_, name, colour, dashes) in enumerate(STYLES):
        x, y = LEFT + 4 + 96 * number, TOP - 14
        yield f'<path d="M{x} {y}h26" stroke="{colour}" stroke-width="2"{dashes}/>'
        yield f'<text x="{x + 32}" y="{y + 4}" fill="{GREY}">{name}</text>'


def reference(axis: str, kind: str) -> str:
    """Return the part of a page between the markers of a kind."""
    part = {**OBJECTIVES, **CORRECTIONS}[kind]
    parts = [] if kind in NOT_DRAWN else [f"![The gate of {kind} against the ratio](gates/{kind}.svg)"]
    parts += [*fractions(kind), table(part), *presets(axis, kind)]
    return "\n\n".join([f"<!-- {axis}: {kind} -->", *parts, f"<!-- end of {axis}: {kind} -->"])


def table(part: type[Any]) -> str:
    """Return the parameters as a table of Markdown."""
    rows = [
        f"| `{each.name}` | {each.value} | {each.range or '–'} | {each.meaning.replace('|', chr(92) + '|')} |"
        for each in parameters(part)
    ]
    return "\n".join(["| parameter | default | range | meaning |", "|---|---|---|---|", *rows])


def presets(axis: str, kind: str) -> Iterator[str]:
    """Yield the presets with an objective or a correction, each with its band."""
    named = {
        name: ": ".join(bound_of(preset.objective)).removeprefix("band of the ratio: ")
        for name, preset in PRESETS.items()
        if kind in ([preset.objective.kind] if axis == "objective" else [c.kind for c in preset.corrections])
    }
    if named:
        yield "Presets: " + ", ".join(f"`{name}` ({bound})" for name, bound in named.items()) + "."


def fractions(kind: str) -> Iterator[str]:
    """Yield the clip fractions of an objective on the two batches of docs/objectives.md."""
    cells = measured().get(kind)
    if cells:
        healthy, lost, _, failing, lost_later, _ = cells
        yield (
            f"Clip fractions, low / high: {healthy} on [a healthy batch](../objectives.md#clip-fractions), "
            f"where {lost} of the tokens have no gradient; {failing} on a batch of a run that collapses, "
            f"where {lost_later} have none."
        )


def measured() -> Mapping[str, list[str]]:
    """Return the rows of the table of clip fractions, by the kind of the objective."""
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", FRACTIONS.read_text(encoding="utf-8"), re.MULTILINE)
    return {kind: cells.split(" | ") for kind, cells in rows if cells.count(" | ") == 5}


def files() -> dict[Path, str]:
    """Return the text of each page and each picture."""
    texts = {}
    for path in sorted(PAGES.glob("*.md")):
        page = path.read_text(encoding="utf-8")
        texts[path] = BLOCK.sub(lambda block: reference(block[1], block[2]), page)
        for axis, kind in BLOCK.findall(page):
            if kind not in NOT_DRAWN:
                texts[PAGES / "gates" / f"{kind}.svg"] = picture(axis, kind)
    return texts


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files, or with --check return 1 if one of them differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare")
    arguments = parser.parse_args(argv)
    texts = files()
    old = [path for path, text in texts.items() if not path.exists() or path.read_text("utf-8") != text]
    if arguments.check:
        print("\n".join(f"{path}: old, run `make docs`" for path in old), file=sys.stderr)
        return int(bool(old))
    for path in old:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
