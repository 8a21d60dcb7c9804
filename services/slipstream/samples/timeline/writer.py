"""Writes the spans of a run in a thread of its own, so that no step waits for the disk or for a collector.

learner, publisher, fleet ─▶ queue ─▶ thread ─┬▶ timeline.jsonl
                                              └▶ OpenTelemetry
"""

import asyncio
import json
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from slipstream.records import Group, StepTimes
from slipstream.samples.timeline.export import open_export
from slipstream.samples.timeline.spans import FILE, LEARNER, Span, TrainedBatch, trained_group
from slipstream.telemetry import clock, logs

QUEUED: Final = 10_000
"""Spans that wait for the thread; a span that finds no room is left out."""
BATCH: Final = 1_000
"""Spans that are written together."""
CLOSE_SECONDS: Final = 10.0
"""Longest wait for the thread at the end of the learner."""

Item = Span | TrainedBatch


class Sink(Protocol):
    """Where spans go. Its methods run in the thread, and may raise anything."""

    def take(self, items: Sequence[Item]) -> None:
        """Write or send some spans."""

    def close(self) -> None:
        """Write or send the rest, within a bound of time."""


class Timeline:
    """Takes spans of the learner and of the rollouts. Invariant: no call waits, and none raises an error."""

    def __init__(self, sinks: Mapping[str, Sink], log: logs.Log) -> None:
        """`sinks`: by the name that a failure is logged with. Without any, spans are dropped."""
        self._sinks = sinks
        self._log = log
        self._failing: set[str] = set()
        self._full = False
        self._queue: queue.Queue[Item | None] = queue.Queue(QUEUED)
        self._thread = threading.Thread(target=self._run, name="timeline", daemon=True)
        if sinks:
            self._thread.start()

    def add(
        self,
        what: str,
        start: float,
        end: float,
        *,
        lane: str = LEARNER,
        step: int | None = None,
        failed: bool = False,
    ) -> None:
        """Add a span between two moments of `time.monotonic`."""
        offset = clock.epoch_offset()
        self._put(
            Span(lane=lane, what=what, start=start + offset, end=end + offset, step=step, failed=failed)
        )

    def event(self, what: str, *, lane: str, step: int | None = None) -> None:
        """Add what happened now, as a span without a length."""
        now = time.monotonic()
        self.add(what, now, now, lane=lane, step=step)

    @contextmanager
    def during(self, what: str, *, lane: str = LEARNER, step: int | None = None) -> Iterator[None]:
        """Add a span of the block; it has failed if the block raises an error or is cancelled."""
        start, failed = time.monotonic(), True
        try:
            yield
            failed = False
        finally:
            self.add(what, start, time.monotonic(), lane=lane, step=step, failed=failed)

    def trained(self, step: int, groups: Sequence[Group], times: StepTimes) -> None:
        """Add the groups that a step trained on."""
        self._put(TrainedBatch(step=step, groups=[*map(trained_group, groups)], times=times))

    def close(self) -> None:
        """Write what is queued, for at most CLOSE_SECONDS."""
        if not self._sinks:
            return
        with suppress(queue.Full):
            self._queue.put(None, timeout=CLOSE_SECONDS / 2)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self._log.warning("the end of the timeline is not written: the disk or the collector is slow")

    def _put(self, item: Item) -> None:
        if not self._sinks:
            return
        try:
            self._queue.put_nowait(item)
            self._full = False
        except queue.Full:
            if not self._full:
                self._log.warning("spans are left out of the timeline: the disk or the collector is slow")
            self._full = True

    def _run(self) -> None:
        last = False
        while not last:
            items, last = self._next()
            for name, sink in self._sinks.items():
                self._attempt(name, partial(sink.take, items))
        for name, sink in self._sinks.items():
            self._attempt(name, sink.close)

    def _next(self) -> tuple[list[Item], bool]:
        """Return the spans that are queued, at least one; and whether they are the last."""
        items = [self._queue.get()]
        with suppress(queue.Empty):
            while items[-1] is not None and len(items) < BATCH:
                items.append(self._queue.get_nowait())
        return [item for item in items if item is not None], items[-1] is None

    def _attempt(self, name: str, work: Callable[[], None]) -> None:
        """Run a call of a sink; log the first of several failures in a row."""
        try:
            work()
            self._failing.discard(name)
        except Exception as error:  # a full disk, or a collector: training goes on
            if name not in self._failing:
                self._log.error("spans are lost", sink=name, error=f"{type(error).__name__}: {error}")
            self._failing.add(name)


NO_TIMELINE: Final = Timeline({}, logs.Log(pod=""))
"""Takes spans and drops them."""


class TimelineFile:
    """Appends spans to the file of a run, each batch of lines by one write."""

    def __init__(self, run_dir: Path) -> None:
        """Errors: OSError."""
        run_dir.mkdir(parents=True, exist_ok=True)
        self._file = (run_dir / FILE).open("ab", buffering=0)
        self._torn = self._file.tell() > 0
        """Whether the file may end in the middle of a line."""

    def take(self, items: Sequence[Item]) -> None:
        """Write the spans among the items. Errors: OSError."""
        lines = "".join(map(_line, (item for item in items if isinstance(item, Span)))).encode()
        if not lines:
            return
        data = b"\n" + lines if self._torn else lines
        self._torn = True
        written = self._file.write(data)
        if written != len(data):
            raise OSError(f"{self._file.name}: {written} of {len(data)} bytes written")
        self._torn = False

    def close(self) -> None:
        """Close the file. Errors: OSError."""
        self._file.close()


def _line(span: Span) -> str:
    row = {"lane": span.lane, "what": span.what, "start": round(span.start, 6), "end": round(span.end, 6)}
    about = {} if span.step is None else {"step": span.step}
    return json.dumps({**row, **about, **({"failed": True} if span.failed else {})}) + "\n"


@asynccontextmanager
async def open_timeline(run_dir: Path, log: logs.Log) -> AsyncIterator[Timeline]:
    """Begin to write the timeline of a run, after what earlier processes have written.

    Errors: OSError; ConfigError if a collector is set in the environment and OpenTelemetry is not installed.
    """
    timeline = Timeline(_sinks(run_dir, log), log)
    try:
        yield timeline
    finally:
        await asyncio.to_thread(timeline.close)


def _sinks(run_dir: Path, log: logs.Log) -> dict[str, Sink]:
    export = open_export(run_dir.resolve().name)
    sinks: dict[str, Sink] = {FILE: TimelineFile(run_dir)}
    if export is not None:
        log.info("spans go to a collector", endpoint=export.endpoint)
        sinks["OpenTelemetry"] = export
    return sinks
