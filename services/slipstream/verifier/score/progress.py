"""How far it is, on a terminal: one line that is written again and again, and is gone at the end."""

import time
from typing import TextIO

EVERY_SECONDS = 0.5


class Progress:
    """Says how many completions are scored; to anything but a terminal it says nothing."""

    def __init__(self, stream: TextIO, *, shown: bool) -> None:
        self._stream = stream
        self._shown = shown and stream.isatty()
        self._started = self._last = time.monotonic()

    def at(self, completions: int) -> None:
        """So many are done."""
        now = time.monotonic()
        if self._shown and now - self._last >= EVERY_SECONDS:
            self._last = now
            rate = completions / (now - self._started)
            self._stream.write(f"\r{completions:,} completions scored, {rate:,.0f}/s\x1b[K")
            self._stream.flush()

    def clear(self) -> None:
        """Make room for other lines."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
