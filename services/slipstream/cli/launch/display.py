"""What the command shows: plain lines on a pipe, a live panel on a terminal."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

from slipstream.cli.launch.columns import columns, evaluation_line, step_line
from slipstream.cli.launch.history import History, Row

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WAITING_LINE_SECONDS = 10.0


class Display(Protocol):
    """Shows a run to a person. Nothing that it does may stop the run."""

    def say(self, line: str) -> None:
        """Something worth a line of its own."""

    def waiting(self, what: str, seconds: float) -> None:
        """What is being waited for, and for how long so far; called often."""

    def rows(self, new: Sequence[Row], history: History) -> None:
        """Rows that have come in."""

    def close(self) -> None:
        """Nothing more will be shown but plain lines."""


class PlainDisplay:
    """One line a step, for pipes and files. A reader that goes away does not stop the run."""

    def __init__(self, steps: int, stream: TextIO) -> None:
        self._steps = steps
        self._stream = stream
        self._next_waiting_line = 0.0

    def say(self, line: str) -> None:
        """Print a line."""
        try:
            print(line, file=self._stream, flush=True)
        except OSError:
            self._stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (it lives as long as we do)
            os.dup2(self._stream.fileno(), sys.stdout.fileno())

    def waiting(self, what: str, seconds: float) -> None:
        """Print it at the beginning of a wait, and then every few seconds."""
        if seconds < WAITING_LINE_SECONDS:
            self._next_waiting_line = min(self._next_waiting_line, WAITING_LINE_SECONDS)
        if seconds >= self._next_waiting_line:
            self.say(f"waiting for {what} ({seconds:.0f} s)")
            self._next_waiting_line = seconds + WAITING_LINE_SECONDS

    def rows(self, new: Sequence[Row], history: History) -> None:
        """Print one line for each."""
        for row in new:
            if row.get("event") == "step" and isinstance(row.get("step"), int):
                self.say(step_line(row, history, steps=self._steps))
            elif row.get("event") == "evaluation":
                self.say(evaluation_line(row))
            elif row.get("event") == "progress":
                self.say(str(row.get("text")))

    def close(self) -> None:
        """Nothing is held."""


class LiveDisplay:
    """A panel at the foot of the terminal that is redrawn; lines go above it."""

    def __init__(self, title: str, steps: int, console: "Console | None" = None) -> None:
        from rich.live import Live

        self._title = title
        self._steps = steps
        self._live = Live("", console=console, refresh_per_second=4, transient=False)
        self._live.start()

    def say(self, line: str) -> None:
        """Print a line above the panel."""
        self._live.console.print(line, markup=False, highlight=False)

    def waiting(self, what: str, seconds: float) -> None:
        """Show it in place of the panel."""
        self._live.update(f"[dim]waiting for[/dim] {what} [dim]({seconds:.0f} s)[/dim]")

    def rows(self, new: Sequence[Row], history: History) -> None:
        """Redraw the panel."""
        for row in new:
            if row.get("event") == "evaluation":
                self.say(evaluation_line(row))
            elif row.get("event") == "progress":
                self.say(str(row.get("text")))
        if history.last_step:
            self._live.update(panel(self._title, history, self._steps))

    def close(self) -> None:
        """Leave the last panel on the terminal."""
        self._live.stop()


def panel(title: str, history: History, steps: int) -> "RenderableType":
    """The newest step as a panel: a bar, and the columns, as many beside each other as the width takes."""
    from rich.columns import Columns
    from rich.console import Group
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    row = history.last_step
    texts = columns(row, history, steps=steps)
    cells = [Text.assemble((name, "dim"), "\n", text) for name, text in texts.items()]
    bar = ProgressBar(total=steps, completed=float(row.get("step", 0)))
    body = Group(bar, "", Columns(cells, padding=(0, 3), column_first=False))
    return Panel(body, title=title, title_align="left", border_style="cyan")


def open_display(title: str, steps: int, *, plain: bool) -> Display:
    """A live display on a terminal that has rich; plain lines otherwise."""
    if plain or not sys.stdout.isatty():
        return PlainDisplay(steps, sys.stdout)
    try:
        return LiveDisplay(title, steps)
    except ImportError:
        return PlainDisplay(steps, sys.stdout)
