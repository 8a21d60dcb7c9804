"""The output of a run: plain lines on a pipe, a live panel on a terminal."""

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
    """Shows a run. An error of the display must not stop the run."""

    def say(self, line: str) -> None:
        """Show a line."""

    def waiting(self, what: str, seconds: float) -> None:
        """Show that the run has waited for something for `seconds`. Called often."""

    def rows(self, new: Sequence[Row], history: History) -> None:
        """Show new rows of the learner."""

    def close(self) -> None:
        """End the panel; only `say` is called afterwards."""


class PlainDisplay:
    """One line for each step, for pipes and files. A closed pipe does not stop the run."""

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
        """Print a line at the start of a wait, and then every few seconds."""
        if seconds < WAITING_LINE_SECONDS:
            self._next_waiting_line = min(self._next_waiting_line, WAITING_LINE_SECONDS)
        if seconds >= self._next_waiting_line:
            self.say(f"waiting for {what} ({seconds:.0f} s)")
            self._next_waiting_line = seconds + WAITING_LINE_SECONDS

    def rows(self, new: Sequence[Row], history: History) -> None:
        """Print one line for each row."""
        for row in new:
            if row.get("event") == "step" and isinstance(row.get("step"), int):
                self.say(step_line(row, history, steps=self._steps))
            elif row.get("event") == "evaluation":
                self.say(evaluation_line(row))
            elif row.get("event") == "progress":
                self.say(str(row.get("text")))

    def close(self) -> None:
        """Do nothing."""


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
        """Show the wait in place of the panel."""
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
    """Return a panel of the newest step: a progress bar, and its columns, as many in a line as fit."""
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
    """Return a live display if stdout is a terminal and rich is installed; plain lines otherwise."""
    if plain or not sys.stdout.isatty():
        return PlainDisplay(steps, sys.stdout)
    try:
        return LiveDisplay(title, steps)
    except ImportError:
        return PlainDisplay(steps, sys.stdout)
