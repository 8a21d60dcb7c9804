"""The log lines of all pods of a release, merged, each with the name of its pod."""

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
RETRY_SECONDS = 0.5
WAITING_LINES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line with its time as the kubelet wrote it (RFC 3339, UTC: it sorts as text) and its pod."""

    stamp: str
    pod: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which lines: of the last `since_seconds`, and at most the last `tail` of a pod (None: all)."""

    since_seconds: int | None = None
    tail: int | None = None


def read_logs(api: Api, pods: Sequence[Pod], wanted: Wanted) -> Iterator[Line]:
    """The lines that there are, in order of time."""
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
    """Lines as they come, without end; every `look_seconds` pods that `target` means and are new join in."""
    lines: queue.Queue[Line | ClusterError] = queue.Queue(maxsize=WAITING_LINES)
    followed: set[str] = set()
    first, looked = wanted, time.monotonic()
    while True:
        for pod in pods:
            if pod.name not in followed:
                followed.add(pod.name)
                reader = (api, pod, first, lines.put)
                threading.Thread(target=_follow, args=reader, daemon=True).start()
        try:
            yield _line(lines.get(timeout=max(0.0, looked + look_seconds - time.monotonic())))
        except queue.Empty:
            # A pod that comes later is new from its first line on.
            first, looked = Wanted(), time.monotonic()
            pods = _meant(pods_of(api, release), target)


def choose_pods(api: Api, release: Release, target: str) -> list[Pod]:
    """The pods that COMPONENT, COMPONENT/POOL or a pod's name means; all for "".

    Errors: ClusterUsageError naming what there is.
    """
    pods = pods_of(api, release)
    found = _meant(pods, target)
    if not found:
        known = ", ".join(dict.fromkeys(pod.title for pod in pods)) or "none at all"
        what = f"no pod of {target}" if target else "no pod"
        raise ClusterUsageError(f"release {release.name} has {what}; its pods are of {known}")
    return found


def _meant(pods: Iterable[Pod], target: str) -> list[Pod]:
    return [
        pod for pod in pods if target in ("", pod.component, pod.title, pod.name) or _ends_in(pod, target)
    ]


def _ends_in(pod: Pod, target: str) -> bool:
    """Whether the target is the short name that we print."""
    return target.partition("-")[0] in COMPONENTS and pod.name.endswith(f"-{target}")


def _line(found: Line | ClusterError) -> Line:
    if isinstance(found, ClusterError):
        raise found
    return found


def _follow(api: Api, pod: Pod, wanted: Wanted, put: Callable[[Line | ClusterError], None]) -> None:
    """One pod's lines until it is gone. A stream that breaks is taken up where it ended."""
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
    """The lines of one pod; none while its container has not begun, or where the stream breaks."""
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
    """The lines of a stream that comes in pieces of any size."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line.decode("utf-8", errors="replace") for line in whole)
    if rest:
        yield rest.decode("utf-8", errors="replace")


def _age(stamp: str) -> int:
    """Seconds since a time, rounded up; Python reads no more than microseconds of it."""
    seconds = stamp.removesuffix("Z").partition(".")[0]
    then = datetime.fromisoformat(seconds).replace(tzinfo=UTC)
    return math.ceil((datetime.now(UTC) - then).total_seconds())
