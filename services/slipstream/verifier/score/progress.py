"""A progress line on a terminal, which is overwritten, and removed at the end."""

import time
from typing import TextIO

EVERY_SECONDS = 0.5


class Progress:
    """Shows the number of scored completions, if the stream is a terminal."""

    def __init__(self, stream: TextIO, *, shown: bool) -> None:
        self._stream = stream
        self._shown = shown and stream.isatty()
        self._started = self._last = time.monotonic()

    def at(self, completions: int) -> None:
        """Show that so many completions are scored."""
        now = time.monotonic()
        if self._shown and now - self._last >= EVERY_SECONDS:
            self._last = now
            rate = completions / (now - self._started)
            self._stream.write(f"\r{completions:,} completions scored, {rate:,.0f}/s\x1b[K")
            self._stream.flush()

    def clear(self) -> None:
        """Remove the progress line, before other lines are printed."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
