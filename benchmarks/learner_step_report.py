"""The findings of learner_step.py as Markdown tables, the limits they are held to, their place in a page."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from cost import Cost
from gradient_cost import OURS, TRL_CUT, Speed, times_faster
from head_cost import CHUNKED, LIMIT_MEMORY, LIMIT_TIME, WHOLE, Shape

BEGIN, END = "<!-- learner_step: begin -->", "<!-- learner_step: end -->"
SPEED = 2.0
"""Least trained tokens a second, as a multiple of the padded ones'."""
GROWTH = 1.15
"""Most that a token may cost and a step hold at any size, as a multiple of the smallest with full rows."""
BATCH_BYTES = 300
"""What a token of the batch takes all the time: ids, logprobs, versions, places, what is known of it."""
SAME = 1e-4
"""Most that a gradient may be away from the plain one, in units of its norm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What must hold, in words, and whether it does."""

    text: str
    holds: bool

    def __str__(self) -> str:
        return f"- {'holds' if self.holds else 'DOES NOT HOLD'}: {self.text}"


def speed_table(found: Mapping[str, Speed], tokens: int) -> str:
    """A line for each way to the gradient."""
    names = [OURS, *(name for name in found if name != OURS)]
    rows = [
        [
            name,
            f"{tokens / median(found[name].seconds):,.0f}",
            f"{times_faster(found, OURS, name):.2f}",
            f"{found[name].positions / tokens:.2f}",
            "–" if math.isnan(found[name].distance) else f"{found[name].distance:.0e}",
        ]
        for name in names
    ]
    titles = ["way", "trained tokens/s", "time / Slipstream", "positions / trained token", "off the gradient"]
    return _table(titles, rows)


def speed_limits(found: Mapping[str, Speed], plain: str) -> list[Limit]:
    """Faster than TRL where that is installed, else than the plain implementation; and the same gradient."""
    other = TRL_CUT if TRL_CUT in found else plain
    faster = times_faster(found, OURS, other)
    worst = max(speed.distance for speed in found.values() if not math.isnan(speed.distance))
    return [
        Limit(text=f"at least {SPEED:g} times the tokens/s of «{other}»", holds=faster >= SPEED),
        Limit(text=f"all gradients agree to {SAME:g} of their norm", holds=worst <= SAME),
    ]


def head_table(found: Mapping[str, Cost], shape: Shape) -> str:
    """A line for each variant."""
    whole = found[WHOLE]
    rows = [
        [
            name,
            f"{cost.seconds:.1f}",
            f"{cost.seconds / whole.seconds:.2f}",
            f"{cost.peak_bytes / 2**20:,.0f}",
            f"{cost.peak_bytes / whole.peak_bytes:.3f}",
        ]
        for name, cost in found.items()
    ]
    head = f"{shape.tokens:,} tokens, hidden {shape.hidden}, vocabulary {shape.vocabulary:,}."
    return f"{head}\n\n{_table(['variant', 'seconds', 'time', 'peak MiB', 'peak'], rows)}"


def head_limits(found: Mapping[str, Cost]) -> list[Limit]:
    """On memory and time of the chunks."""
    whole, chunked = found[WHOLE], found[CHUNKED]
    return [
        Limit(
            text=f"at most {LIMIT_MEMORY:g} of the memory of all logits",
            holds=chunked.peak_bytes <= LIMIT_MEMORY * whole.peak_bytes,
        ),
        Limit(
            text=f"at most {LIMIT_TIME:g} times their time",
            holds=chunked.seconds <= LIMIT_TIME * whole.seconds,
        ),
    ]


def growth_table(found: Mapping[int, Cost], full: int) -> str:
    """A line for each size of a step."""
    unit = found[full]
    rows = [
        [
            f"{tokens:,}",
            f"{cost.seconds * 1e6:,.0f}",
            f"{cost.seconds / unit.seconds:.2f}",
            f"{cost.peak_bytes / 2**20:,.0f}",
            f"{cost.peak_bytes / unit.peak_bytes:.2f}",
        ]
        for tokens, cost in found.items()
    ]
    return _table(["tokens of a step", "µs a token", "time", "peak MiB", "peak"], rows)


def beyond_batch(tokens: int, cost: Cost) -> float:
    """Peak memory without what the batch itself takes, which no row size bounds."""
    return cost.peak_bytes - BATCH_BYTES * tokens


def growth_limits(found: Mapping[int, Cost], full: int) -> list[Limit]:
    """On steps larger than the smallest with full rows."""
    unit, larger = found[full], [cost for tokens, cost in found.items() if tokens > full]
    limit = f"above {full:,} tokens at most {GROWTH:g} times the"
    return [
        Limit(
            text=f"{limit} cost of a token",
            holds=all(cost.seconds <= GROWTH * unit.seconds for cost in larger),
        ),
        Limit(
            text=f"{limit} peak memory, beside {BATCH_BYTES} bytes a token of the batch itself",
            holds=all(
                beyond_batch(t, c) <= GROWTH * beyond_batch(full, unit) for t, c in found.items() if t > full
            ),
        ),
    ]


def with_report(page: str, report: str) -> str:
    """The page with the text between the two markers replaced. Errors: ValueError without them."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError(f"page: needs one `{BEGIN}` and one `{END}` after it")
    return f"{page[: page.index(BEGIN)]}{BEGIN}\n\n{report}\n\n{page[page.index(END) :]}"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [titles, ["---"] * len(titles), *rows])
