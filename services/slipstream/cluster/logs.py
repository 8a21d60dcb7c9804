"""Log lines of all pods of a release, merged by time. Unlike kubectl, it also follows pods that start
later."""

import heapq
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from slipstream.cluster.api import Api
from slipstream.cluster.errors import ClusterError, ClusterUsageError, Missing, NotStarted
from slipstream.cluster.pods import Pod, pods_of
from slipstream.cluster.release import COMPONENTS, Release

LOOK_SECONDS = 3.0
"""Time between two searches for new pods."""
RETRY_SECONDS = 0.5
WAITING_LINES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line, its pod, and its time as the kubelet wrote it: RFC 3339 in UTC, which sorts as text."""

    stamp: str
    pod: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The lines to read: those of the last `since_seconds`, and at most the last `tail` of a pod; None is
    all."""

    since_seconds: int | None = None
    tail: int | None = None


def read_logs(api: Api, pods: Sequence[Pod], wanted: Wanted) -> Iterator[Line]:
    """Return the existing lines, in order of time."""
    return heapq.merge(*(_lines(api, pod, wanted, follow=False) for pod in pods), key=lambda line: line.stamp)


def follow_logs(
    api: Api,
    release: Release,
    pods: Sequence[Pod],
    wanted: Wanted,
    *,
    target: str,
    look_seconds: float = LOOK_SECONDS,
) -> Iterator[Line]:
    """Yield lines as they are written, without end. New pods of `target` are found every `look_seconds`."""
    lines: queue.Queue[Line | ClusterError] = queue.Queue(maxsize=WAITING_LINES)
    followed: set[str] = set()
    first, searched = wanted, time.monotonic()
    while True:
        for pod in pods:
            if pod.name not in followed:
                followed.add(pod.name)
                reader = (api, pod, first, lines.put)
                threading.Thread(target=_follow, args=reader, daemon=True).start()
        try:
            yield _line(lines.get(timeout=max(0.0, searched + look_seconds - time.monotonic())))
        except queue.Empty:
            # All lines of a pod that starts later are new, so `wanted` does not limit them.
            first, searched = Wanted(), time.monotonic()
            pods = _matching(pods_of(api, release), target)


def choose_pods(api: Api, release: Release, target: str) -> list[Pod]:
    """Return the pods of `target`: COMPONENT, COMPONENT/POOL, the name of a pod, or "" for all pods.

    Errors: ClusterUsageError naming the components that exist.
    """
    pods = pods_of(api, release)
    chosen = _matching(pods, target)
    if not chosen:
        titles = ", ".join(dict.fromkeys(pod.title for pod in pods)) or "none at all"
        what = f"no pod of {target}" if target else "no pod"
        raise ClusterUsageError(f"release {release.name} has {what}; its pods are of {titles}")
    return chosen


def _matching(pods: Iterable[Pod], target: str) -> list[Pod]:
    return [
        pod for pod in pods if target in ("", pod.component, pod.title, pod.name) or _ends_in(pod, target)
    ]


def _ends_in(pod: Pod, target: str) -> bool:
    """Return whether the target is the short name of the pod, as it is printed."""
    return target.partition("-")[0] in COMPONENTS and pod.name.endswith(f"-{target}")


def _line(item: Line | ClusterError) -> Line:
    if isinstance(item, ClusterError):
        raise item
    return item


def _follow(api: Api, pod: Pod, wanted: Wanted, put: Callable[[Line | ClusterError], None]) -> None:
    """Put the lines of a pod until it is deleted; after a broken stream, continue with the next line."""
    last = ""
    while True:
        try:
            for line in _lines(api, pod, wanted, follow=True):
                if line.stamp > last:
                    last = line.stamp
                    put(line)
        except Missing:
            return
        except ClusterError as error:
            put(error)
            return
        time.sleep(RETRY_SECONDS)
        if last:
            wanted = Wanted(since_seconds=_age(last) + 1)


def _lines(api: Api, pod: Pod, wanted: Wanted, *, follow: bool) -> Iterator[Line]:
    """Yield the lines of one pod; end if its container has not started, or if the stream breaks."""
    from urllib3.exceptions import HTTPError

    try:
        pieces = api.log(
            pod.name, pod.container, follow=follow, since_seconds=wanted.since_seconds, tail=wanted.tail
        )
        for text in split_lines(pieces):
            stamp, _, rest = text.partition(" ")
            yield Line(stamp=stamp, pod=pod.name, text=rest)
    except (NotStarted, HTTPError):
        return


def split_lines(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of a stream that arrives in pieces of any size."""
    rest = b""
    for piece in pieces:
        *complete, rest = (rest + piece).split(b"\n")
        yield from (line.decode("utf-8", errors="replace") for line in complete)
    if rest:
        yield rest.decode("utf-8", errors="replace")


def _age(stamp: str) -> int:
    """Return the seconds since a time, rounded up. Fractions are cut off: Python cannot parse nanoseconds."""
    seconds = stamp.removesuffix("Z").partition(".")[0]
    then = datetime.fromisoformat(seconds).replace(tzinfo=UTC)
    return math.ceil((datetime.now(UTC) - then).total_seconds())
