"""Structured logs: each event is one line with time, level, pod, event and key=value pairs."""

import json
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TextIO

Level = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")
LINE = re.compile(r"\S+Z (?P<level>\w+) +(?P<pod>\S+): (?P<event>[^=]*?)(?P<pairs>(?: \w+=.*)?)$")
PAIR = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Writes the events of one pod to a stream, flushed line by line. Events below `level` are dropped."""

    pod: str
    level: Level = "info"
    stream: TextIO = field(default_factory=lambda: sys.stderr)

    def debug(self, event: str, **values: object) -> None:
        """Log an event that matters only for debugging."""
        self._write("debug", event, values)

    def info(self, event: str, **values: object) -> None:
        """Log an event of normal operation."""
        self._write("info", event, values)

    def warning(self, event: str, **values: object) -> None:
        """Log an event that an operator should look at."""
        self._write("warning", event, values)

    def error(self, event: str, **values: object) -> None:
        """Log an event that makes some work fail."""
        self._write("error", event, values)

    def _write(self, level: Level, event: str, values: dict[str, object]) -> None:
        if LEVELS.index(level) < LEVELS.index(self.level):
            return
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
        pairs = " ".join(f"{key}={_show(value)}" for key, value in values.items())
        print(f"{stamp} {level:<7} {self.pod}: {event} {pairs}".rstrip(), file=self.stream, flush=True)


def _show(value: object) -> str:
    """Format a value: in quotes unless it is one plain word, with unprintable characters escaped."""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    if text and text.isprintable() and " " not in text and '"' not in text:
        return text
    return printable(json.dumps(text, ensure_ascii=False))


def printable(text: str) -> str:
    """Escape the characters of a text that a terminal would interpret, as JSON does."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One parsed line of a log."""

    level: str
    pod: str
    event: str
    values: Mapping[str, str]


def read_event(line: str) -> Event | None:
    """Parse a line that `Log` wrote; return None for any other line."""
    parts = LINE.match(line)
    if parts is None:
        return None
    values = {key: _parse(text) for key, text in PAIR.findall(parts["pairs"])}
    return Event(level=parts["level"], pod=parts["pod"], event=parts["event"], values=values)


def _parse(text: str) -> str:
    return str(json.loads(text)) if text.startswith('"') else text
