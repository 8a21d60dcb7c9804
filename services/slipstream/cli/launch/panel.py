"""The panel of a run: curves, staleness, who waits for whom, and the newest sample."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slipstream.cli.launch import columns, last_sample, summary
from slipstream.cli.launch.alarms import Alarm, time_shares
from slipstream.cli.launch.curves import Points, curve, histogram, stacked_bar
from slipstream.cli.launch.history import PACE_STEPS, History, Row, number
from slipstream.records.json_values import finite_number

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

LABEL_CELLS, NUMBER_CELLS = 11, 7
LEAST_CELLS = 8
"""Width of the shortest curve or bar; it is left out where a line is shorter."""
MOST_CELLS = 120
"""Width of the panel in a wider terminal."""
TALL = 34
"""Lines of a terminal from which on the curves of reward and accuracy have TALL_ROWS lines."""
TALL_ROWS = 3
FRAME_LINES, FREE_LINES = 4, 4
"""Lines of the frame and of the progress; lines of the terminal that the panel leaves to messages."""
LONG_STEP_SECONDS = 10.0
"""Time from which on the panel shows for how long the current step has lasted."""
SAMPLE_LINES, LEAST_SAMPLE_LINES = 8, 3
PHASES = {
    "wait": ("░", "yellow", "waits"),
    "train": ("█", "green", "trains"),
    "publish": ("▒", "blue", "publishes"),
}
COLORS = {"error": "bold red", "warning": "yellow", "note": "cyan"}


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the panel shows of a run."""

    title: str
    steps: int
    groups_per_step: int
    history: History
    sample: Row | None = None
    alarms: Sequence[Alarm] = field(default=())
    seconds_since_step: float = 0.0


def panel(view: View, *, width: int, height: int) -> "RenderableType":
    """Return a panel for a terminal; where it is low, less important lines are left out."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    width = min(width, MOST_CELLS)
    inner, budget = width - 4, height - FREE_LINES - FRAME_LINES
    rows = 1 if height < TALL else TALL_ROWS
    lines = facts(view, width=inner, rows=rows)[: max(budget, 1)]
    lines += [_alarm(alarm) for alarm in view.alarms[:1] if len(lines) < budget]
    sample = _sample(view.sample, width=inner, lines=min(SAMPLE_LINES, budget - len(lines)))
    return Panel(
        Group(_progress(view, width=inner), Text(), *lines, *sample),
        title=Text(last_sample.one_line(view.title), style="bold"),
        title_align="left",
        border_style="cyan",
        width=width,
    )


def facts(view: View, *, width: int, rows: int = 1) -> list["Text"]:
    """Return the lines of the numbers, the most important first. Lines without a value are left out.

    `rows`: height of the curves of reward and accuracy.
    """
    history, last = view.history, view.history.last_step
    cells = max(width - LABEL_CELLS - 2 * (NUMBER_CELLS + 1), LEAST_CELLS)
    accuracies = history.accuracies
    span = (min(history.steps, default=0), int(number(last, "step")))
    reward = history.column("reward_mean")
    return [
        *_curve_lines("reward", reward, cells, span=span, rows=rows, style="green"),
        *_curve_lines("held-out", accuracies, cells, span=span, rows=rows, style="magenta"),
        *_staleness(last),
        *_clipped(history, span=span, width=width),
        *_speed(history, cells, span=span),
        *_learner(history, width=width),
        *_actors(view),
        *_counts(history),
    ]


def _progress(view: View, *, width: int) -> "RenderableType":
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    step = int(number(view.history.last_step, "step"))
    left = view.history.seconds_left(view.steps)
    words = [f"step {step}/{view.steps}"]
    if left is not None and step < view.steps:
        words.append(f"{columns.duration(max(left - view.seconds_since_step, 0))} left")
    if view.seconds_since_step >= LONG_STEP_SECONDS and step < view.steps:
        words.append(f"this step {columns.duration(view.seconds_since_step)}")
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(ratio=1)
    line.add_column(no_wrap=True)
    line.width = width
    line.add_row(ProgressBar(total=max(view.steps, 1), completed=step), Text(" · ".join(words), style="bold"))
    return line


def _curve_lines(
    name: str, points: Points, cells: int, *, span: tuple[int, int], rows: int, style: str
) -> list["Text"]:
    """Return a curve between its first and its last value."""
    if not points:
        return []
    lines = [(line, style) for line in curve(points, width=cells, span=span, rows=rows)]
    above = [_line("", " " * (NUMBER_CELLS + 1), line) for line in lines[:-1]]
    return [*above, _between(name, f"{points[0][1]:.3f}", lines[-1], f"{points[-1][1]:.3f}")]


def _between(name: str, first: str, line: tuple[str, str], last: str) -> "Text":
    """Return a line with a curve between two numbers."""
    return _line(name, f"{first:<{NUMBER_CELLS}} ", line, (f" {last:>{NUMBER_CELLS}}", "bold"))


def _staleness(last: Row) -> list["Text"]:
    if "staleness_mean" not in last:
        return []
    mean, oldest = number(last, "staleness_mean"), number(last, "staleness_max")
    ages = histogram(summary.histogram_of(last))
    return [_line("staleness", (f"mean {mean:.2f}  max {oldest:.0f}", "bold"), f"   {ages}")]


def _clipped(history: History, *, span: tuple[int, int], width: int) -> list["Text"]:
    low, high = (history.column(f"clip_fraction_{side}") for side in ("low", "high"))
    if not low or not high:
        return []
    both = [(step, a + b) for (step, a), (_, b) in zip(low, high, strict=False)]
    largest = max(share for _, share in both)
    numbers = f"low {low[-1][1]:.2%}  high {high[-1][1]:.2%}  peak {largest:.2%}"
    cells = width - LABEL_CELLS - len(numbers) - 3
    lines = curve(both, width=cells, span=span, floor=0.0) if cells >= LEAST_CELLS else [""]
    return [_line("clipped", (numbers, "bold"), "   ", (lines[0], "red"))]


def _speed(history: History, cells: int, *, span: tuple[int, int]) -> list["Text"]:
    points = history.column("tokens_per_second")
    if not points:
        return []
    (line,) = curve(points, width=cells, span=span, floor=0.0)
    first, last = (_count(value) for value in (points[0][1], points[-1][1]))
    return [_between("tokens/s", first, (line, "cyan"), last)]


def _count(value: float) -> str:
    """Return a number in NUMBER_CELLS characters: 123,456 or 1.235 M."""
    return f"{value:,.0f}" if value < 1e6 else f"{value / 1e6:.4g} M"


def _learner(history: History, *, width: int) -> list["Text"]:
    """Return what the learner did in the time of the newest steps."""
    shares = time_shares(history.newest(PACE_STEPS))
    if not shares:
        return []
    words = ", ".join(f"{PHASES[phase][2]} {share:.0%}" for phase, share in shares.items())
    glyphs = "".join(glyph for glyph, _, _ in PHASES.values())
    cells = width - LABEL_CELLS - len(words) - 3
    parts = stacked_bar(list(shares.values()), glyphs, width=cells if cells >= LEAST_CELLS else 0)
    styles = [style for _, style, _ in PHASES.values()]
    return [_line("learner", (words, "bold"), "   ", *zip(parts, styles, strict=True))]


def _actors(view: View) -> list["Text"]:
    """Return the groups of replay, and who waits for whom."""
    stats = view.history.replay
    if stats is None:
        return []
    ready = stats.ledger.buffered
    numbers = f"{stats.ledger.running:,} groups in work, {ready:,} ready"
    return [_line("actors", (numbers, "bold"), f"   {_who_waits(view)}")]


def _who_waits(view: View) -> str:
    """Say who waits for whom, by the groups of replay."""
    stats = view.history.replay
    if stats is None:
        return columns.NOTHING
    if stats.admission.paused:
        return "paused"
    if stats.ledger.buffered + stats.ledger.in_flight < view.groups_per_step:
        return "the learner waits for groups"
    return "actors wait for the next step" if stats.admission_free <= 0 else "nobody waits"


def _counts(history: History) -> list["Text"]:
    last = history.last_step
    shares = {
        "filtered": history.filtered_share,
        "truncated": finite_number(last.get("truncated_fraction")),
        "over age": finite_number(last.get("over_age_fraction")) or None,
    }
    words = [f"version {number(last, 'version'):.0f}"] if "version" in last else []
    words += [f"{name} {value:.0%}" for name, value in shares.items() if value is not None]
    rollouts = f"{number(last, 'workers'):.0f}" if "workers" in last else columns.NOTHING
    return [_line("rollouts", (rollouts, "bold"), "   ", "   ".join(words))] if words else []


def _alarm(alarm: Alarm) -> "Text":
    return _line(alarm.severity, (alarm.words, COLORS[alarm.severity]), style=COLORS[alarm.severity])


def _sample(sample: Row | None, *, width: int, lines: int) -> list["Text"]:
    """Return the newest sample in `lines` lines at most, with an empty line above."""
    if sample is None or lines < LEAST_SAMPLE_LINES:
        return []
    from rich.text import Text

    texts = {"prompt": last_sample.prompt_of(sample), "answer": str(sample.get("text", ""))}
    most = max((lines - 1) // len(texts), 1)
    made = [Text()] if lines > LEAST_SAMPLE_LINES else []
    made.append(
        _line(
            "sample",
            f"step {last_sample.one_line(str(sample.get('step', columns.NOTHING)))}  ",
            (last_sample.describe_rewards(sample), "bold"),
        )
    )
    for name, text in texts.items():
        parts = last_sample.few_lines(
            text, width=width - LABEL_CELLS, count=most if name == "answer" else max(most - 1, 1)
        )
        made += [_line(name if index == 0 else "", part) for index, part in enumerate(parts)]
    return made[:lines]


def _line(label: str, *parts: str | tuple[str, str], style: str = "dim") -> "Text":
    from rich.text import Text

    return Text.assemble((f"{label:<{LABEL_CELLS}}", style), *parts, no_wrap=True, overflow="ellipsis")
