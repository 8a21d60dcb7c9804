"""One structured line an event: time, level, pod, what happened, and key=value."""

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
    """Writes events of one pod to a stream, flushed line by line; below `level` nothing is written."""

    pod: str
    level: Level = "info"
    stream: TextIO = field(default_factory=lambda: sys.stderr)

    def debug(self, event: str, **values: object) -> None:
        """An event that matters only while looking for a fault."""
        self._write("debug", event, values)

    def info(self, event: str, **values: object) -> None:
        """An event worth knowing afterwards."""
        self._write("info", event, values)

    def warning(self, event: str, **values: object) -> None:
        """An event that somebody should look at."""
        self._write("warning", event, values)

    def error(self, event: str, **values: object) -> None:
        """An event that stops something."""
        self._write("error", event, values)

    def _write(self, level: Level, event: str, values: dict[str, object]) -> None:
        if LEVELS.index(level) < LEVELS.index(self.level):
            return
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
        pairs = " ".join(f"{key}={_show(value)}" for key, value in values.items())
        print(f"{stamp} {level:<7} {self.pod}: {event} {pairs}".rstrip(), file=self.stream, flush=True)


def _show(value: object) -> str:
    """A value, in quotes where it is not one plain word; what a terminal would not print is escaped."""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    if text and text.isprintable() and " " not in text and '"' not in text:
        return text
    return printable(json.dumps(text, ensure_ascii=False))


def printable(text: str) -> str:
    """A text in which control characters, and others that a terminal acts upon, are escaped as in JSON."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of a log, read back."""

    level: str
    pod: str
    event: str
    values: Mapping[str, str]


def read_event(line: str) -> Event | None:
    """The event that `Log` wrote as this line; None for a line that something else wrote."""
    parts = LINE.match(line)
    if parts is None:
        return None
    values = {key: _read(text) for key, text in PAIR.findall(parts["pairs"])}
    return Event(level=parts["level"], pod=parts["pod"], event=parts["event"], values=values)


def _read(text: str) -> str:
    return str(json.loads(text)) if text.startswith('"') else text
