"""The output of a run: plain lines on a pipe, a live panel on a terminal."""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO

from slipstream.cli.launch import columns, last_sample, run_directory
from slipstream.cli.launch.alarms import find_alarms
from slipstream.cli.launch.history import History, Row
from slipstream.cli.launch.panel import View, panel
from slipstream.config import RunConfig

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WAITING_LINE_SECONDS = 10.0
CHANGE_SECONDS, CLOCK_SECONDS = 0.25, 1.0
"""Least time between two drawings of the panel, after new rows and without them."""
BEGIN_UPDATE, END_UPDATE = "\x1b[?2026h", "\x1b[?2026l"
"""A terminal that knows these marks draws what is between them at once; others ignore them."""


class Display(Protocol):
    """Shows a run. An error of the display must not stop the run."""

    def follow(self, run: run_directory.RunDirectory) -> None:
        """Show this run, whose directory is there."""

    def say(self, line: str) -> None:
        """Show a line."""

    def waiting(self, what: str, seconds: float) -> None:
        """Show that the run has waited for something for `seconds`. Called often."""

    def rows(self, new: Sequence[Row], history: History) -> None:
        """Show new rows of the learner."""

    def tick(self) -> None:
        """Show the time. Called often."""

    def close(self) -> None:
        """End the panel; only `say` is called afterwards."""


class PlainDisplay:
    """One line for each step, for pipes and files. A closed pipe does not stop the run."""

    def __init__(self, steps: int, stream: TextIO) -> None:
        self._steps = steps
        self._stream = stream
        self._next_waiting_line = 0.0

    def follow(self, run: run_directory.RunDirectory) -> None:
        """Do nothing."""

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
                self.say(columns.step_line(row, history, steps=self._steps))
            elif row.get("event") == "evaluation":
                self.say(columns.evaluation_line(row))
            elif row.get("event") == "progress":
                self.say(str(row.get("text")))

    def tick(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class LiveDisplay:
    """A panel at the foot of the terminal that is redrawn; lines go above it.

    Each change is one write, between the marks of a synchronized update: the terminal shows no half panel.
    Invariant: no thread draws, so an error reaches the caller.
    """

    def __init__(
        self, config: RunConfig, console: "Console", *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        from rich.live import Live

        self._config = config
        self._clock = clock
        self._samples: Path | None = None
        self._console = console
        self._view: View | None = None
        self._drawn_at = -math.inf
        self._last_step_at = clock()
        self._changed = False
        self._live = Live("", console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._live.start()

    def follow(self, run: run_directory.RunDirectory) -> None:
        """Show the samples of this run."""
        self._samples = run.samples

    def say(self, line: str) -> None:
        """Print a line above the panel."""
        with self._one_write():
            self._console.print(line, markup=False, highlight=False)

    def waiting(self, what: str, seconds: float) -> None:
        """Show the wait in place of the panel."""
        from rich.text import Text

        self._show(Text.assemble(("waiting for ", "dim"), what, (f" ({seconds:.0f} s)", "dim")))

    def rows(self, new: Sequence[Row], history: History) -> None:
        """Take the rows into the panel."""
        for row in new:
            if row.get("event") == "evaluation":
                self.say(columns.evaluation_line(row))
            elif row.get("event") == "progress":
                self.say(str(row.get("text")))
        if history.last_step:
            self._view = self._view_of(history)
            self._changed = True
            if any(row.get("event") == "step" for row in new):
                self._last_step_at = self._clock()
            self.tick()

    def tick(self) -> None:
        """Redraw the panel if it has changed, or if its clock has."""
        pause = CHANGE_SECONDS if self._changed else CLOCK_SECONDS
        if self._view is not None and self._clock() - self._drawn_at >= pause:
            self._draw(self._view)

    def close(self) -> None:
        """Leave the last panel on the terminal."""
        if self._view is not None and self._changed:
            self._draw(self._view)
        self._live.stop()

    def _view_of(self, history: History) -> View:
        return View(
            title=self._config.name,
            steps=self._config.learner.steps,
            groups_per_step=self._config.learner.groups_per_step,
            history=history,
            sample=last_sample.read_last_sample(self._samples) if self._samples else None,
        )

    def _draw(self, view: View) -> None:
        size = self._console.size
        alarms = find_alarms(view.history, config=self._config, now=time.time())
        now = replace(view, alarms=alarms, seconds_since_step=self._clock() - self._last_step_at)
        self._show(panel(now, width=size.width, height=size.height))
        self._drawn_at, self._changed = self._clock(), False

    def _show(self, content: "RenderableType") -> None:
        with self._one_write():
            self._live.update(content, refresh=True)

    @contextmanager
    def _one_write(self) -> Iterator[None]:
        """Collect the output, and write it between the marks of a synchronized update."""
        synchronized = self._console.is_terminal
        self._console.file.write(BEGIN_UPDATE if synchronized else "")
        with self._console:
            yield
        self._console.file.write(END_UPDATE if synchronized else "")
        self._console.file.flush()


class FallbackDisplay:
    """A live display, and plain lines from its first error on: an error must not stop the run."""

    def __init__(self, live: Display, plain: Display) -> None:
        self._live = live
        self._plain = plain
        self._failed = False

    def follow(self, run: run_directory.RunDirectory) -> None:
        """Show the samples of this run."""
        self._call(lambda display: display.follow(run))

    def say(self, line: str) -> None:
        """Show a line."""
        self._call(lambda display: display.say(line))

    def waiting(self, what: str, seconds: float) -> None:
        """Show that the run has waited for something for `seconds`."""
        self._call(lambda display: display.waiting(what, seconds))

    def rows(self, new: Sequence[Row], history: History) -> None:
        """Show new rows of the learner."""
        self._call(lambda display: display.rows(new, history))

    def tick(self) -> None:
        """Show the time."""
        self._call(lambda display: display.tick())

    def close(self) -> None:
        """End the panel."""
        self._call(lambda display: display.close())

    def _call(self, show: Callable[[Display], None]) -> None:
        if self._failed:
            return show(self._plain)
        try:
            show(self._live)
        except Exception as error:
            self._fall_back(error)
            show(self._plain)

    def _fall_back(self, error: Exception) -> None:
        self._failed = True
        with suppress(Exception):
            self._live.close()
        self._plain.say(f"the panel failed ({type(error).__name__}: {error}); plain lines follow")


def open_display(config: RunConfig, *, plain: bool) -> Display:
    """Return a live display if stdout is a terminal and rich is installed; plain lines otherwise."""
    lines = PlainDisplay(config.learner.steps, sys.stdout)
    if plain or not sys.stdout.isatty():
        return lines
    try:
        from rich.console import Console
    except ImportError:
        return lines
    console = Console()
    if console.is_dumb_terminal or not console.encoding.startswith("utf"):
        return lines
    return FallbackDisplay(LiveDisplay(config, console), lines)
