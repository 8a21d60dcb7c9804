"""Writes the reference parts of docs/objectives/*.md and their pictures: `make docs`; --check only compares.

A page has two markers for each objective, correction or advantage, `<!-- objective: NAME -->` and
`<!-- end of objective: NAME -->`. Between them come a picture, the clip fractions of two runs, the parameters
and the presets. The picture of an objective or a correction shows the gates that `policy_loss` returns for
sequences of one token; that of an advantage what the learner's functions return for right and wrong answers.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import baseline_pictures
import torch
from line_pictures import Picture
from slipstream.algorithms import PRESETS, policy_loss
from slipstream.algorithms.advantages import group_advantages
from slipstream.algorithms.presets.preset import Preset, bound_of
from slipstream.algorithms.spec import ADVANTAGES, CORRECTIONS, OBJECTIVES
from slipstream.cli.algorithms import Parameter, parameters

PAGES: Final = Path(__file__).parent / "objectives"
FRACTIONS: Final = Path(__file__).parent / "objectives.md"
BLOCK: Final = re.compile(r"<!-- (\w+): (\w+) -->\n.*?<!-- end of \1: \2 -->", re.DOTALL)
NARROW: Final = {"gspo", "gspo_token", "geometric_rejection"}
FAR: Final = {"cispo", "dppo", "icepop"}
"""Kinds whose bounds are invisible on the usual axis: a thousandth from 1, or above 4."""
NOT_DRAWN: Final = {"m2po", "outlier_tokens"}
"""Corrections whose weight depends on other tokens, or is 1 on the whole axis."""
GROUP: Final = 8
"""Answers of a group in the pictures of advantages."""
ROLLOUT_PROBABILITY: Final = 0.1
"""Probability of the token under the policy that sampled; only dppo and ipo read it."""
POINTS: Final = 241
SIGNS: Final = (1, -1)
"""Of the advantage, one for each line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The axis of the ratio."""

    ratios: torch.Tensor
    ticks: Sequence[float]
    logarithmic: bool


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
    """Return the SVG of a kind."""
    if axis == "advantage":
        return advantages(kind)
    places = axis_of(kind)
    return Picture(
        title=f"{kind}: gate against ratio",
        points=places.ratios.tolist(),
        ticks=places.ticks,
        curves=[gates(axis, kind, places.ratios, sign) for sign in SIGNS],
        labels=("A &gt; 0", "A &lt; 0"),
        across="ratio",
        up="gate weight",
        logarithmic=places.logarithmic,
    ).svg()


def advantages(kind: str) -> str:
    """Return the SVG of the advantages of right and wrong answers, by the right answers of their group.

    An advantage whose baseline comes from more than the rewards of the group has a picture of its own.
    """
    if kind in baseline_pictures.PICTURES:
        return baseline_pictures.PICTURES[kind]().svg()
    return Picture(
        title=f"{kind}: advantage against the right answers of a group",
        points=range(1, GROUP),
        ticks=range(1, GROUP),
        curves=advantages_of(kind),
        labels=("a right answer", "a wrong answer"),
        across=f"right answers in a group of {GROUP}",
        up="advantage",
        jumps=False,
    ).svg()


def advantages_of(kind: str) -> list[list[float]]:
    """Return the advantages of a right and of a wrong answer, for 1 to GROUP - 1 right answers in a group.

    The batch has one group with each number of right answers. A right answer has the reward 1 and 100 tokens,
    a wrong one the reward 0 and 200 tokens.
    """
    right_SG = torch.ones(GROUP + 1, GROUP).tril(-1)
    group_SG = torch.arange(GROUP + 1).unsqueeze(1).expand(-1, GROUP)
    advantage_B = group_advantages(
        {"kind": kind},
        right_SG.flatten().double(),
        group_SG.flatten(),
        lengths=(200 - 100 * right_SG).flatten(),
    )
    mixed = advantage_B.view(GROUP + 1, GROUP)[1:-1]
    return [mixed[:, 0].tolist(), mixed[:, -1].tolist()]


def reference(axis: str, kind: str) -> str:
    """Return the part of a page between the markers of a kind."""
    part = {**OBJECTIVES, **CORRECTIONS, **ADVANTAGES}[kind]
    words = f"The gate of {kind} against the ratio"
    if axis == "advantage":
        words = f"The advantages of {kind} against the right answers of a group"
    if kind in baseline_pictures.PICTURES:
        words = f"The advantages of {kind} in an example, which is described below"
    parts = [] if kind in NOT_DRAWN else [f"![{words}](gates/{kind}.svg)"]
    parts += [*fractions(kind), *table(part), *presets(axis, kind)]
    return "\n\n".join([f"<!-- {axis}: {kind} -->", *parts, f"<!-- end of {axis}: {kind} -->"])


def table(part: type[Any]) -> Iterator[str]:
    """Yield the parameters as a table of Markdown, if there are any."""
    rows = [
        f"| `{each.name}` | {each.value} | {_values(each)} | {each.meaning.replace('|', chr(92) + '|')} |"
        for each in parameters(part)
    ]
    if rows:
        yield "\n".join(["| parameter | default | values | meaning |", "|---|---|---|---|", *rows])


def _values(parameter: Parameter) -> str:
    """Return the range or the choices of a parameter."""
    return parameter.range or ", ".join(f"`{choice}`" for choice in parameter.choices) or "–"


def presets(axis: str, kind: str) -> Iterator[str]:
    """Yield the presets with a kind: each with its band, or for an advantage with its objective."""
    named = {
        name: preset.objective.kind if axis == "advantage" else _band(preset)
        for name, preset in PRESETS.items()
        if kind in _kinds(axis, preset)
    }
    if named:
        yield "Presets: " + ", ".join(f"`{name}` ({about})" for name, about in named.items()) + "."


def _kinds(axis: str, preset: Preset) -> list[str]:
    if axis == "correction":
        return [correction.kind for correction in preset.corrections]
    return [preset.objective.kind if axis == "objective" else preset.advantage.kind]


def _band(preset: Preset) -> str:
    return ": ".join(bound_of(preset.objective)).removeprefix("band of the ratio: ")


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
