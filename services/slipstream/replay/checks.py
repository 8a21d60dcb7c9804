"""Checks of request fields; each error names the field, what is wrong, and what to send instead."""

import math
import re
from collections.abc import Iterable

from slipstream.rpc.errors import InvalidRequest

LONGEST_WAIT_SECONDS = 3600.0
LONGEST_FAILURE = 500  # characters; a longer text is cut
FAULT = re.compile(r"[a-z][a-z0-9_]{0,39}")
GROUP_ID = re.compile(r"g\d{9,}|e\d{9,}-\d{9,}")
LONGEST_NOTE = 500  # characters of who paused admission, and why; a longer text is cut


def check_at_least(least: int, **values: int) -> None:
    """Errors: InvalidRequest naming the field that is smaller than `least`."""
    for name, value in values.items():
        if value < least:
            raise InvalidRequest(f"{name} is {value}; it must be at least {least}")


def check_wait(seconds: float) -> float:
    """Return the seconds of a wait. Errors: InvalidRequest when they are not between 0 and an hour."""
    if not math.isfinite(seconds) or not 0 <= seconds <= LONGEST_WAIT_SECONDS:
        raise InvalidRequest(f"wait_seconds is {seconds}; it must be between 0 and {LONGEST_WAIT_SECONDS:g}")
    return seconds


def check_throughput(per_second: float) -> float:
    """Return the rate of a worker. Errors: InvalidRequest when it is negative or not finite."""
    if not math.isfinite(per_second) or per_second < 0:
        raise InvalidRequest(f"throughput is {per_second}; it must be 0 or greater")
    return per_second


def check_named(**names: str) -> None:
    """Errors: InvalidRequest naming the field that is empty."""
    for field, name in names.items():
        if not name:
            raise InvalidRequest(f"{field} is empty; give the name")


def check_fault(fault: str, *, engines_lost: int) -> tuple[str, int]:
    """Return the fault, which becomes the name of a counter, and the engines lost. Errors: InvalidRequest."""
    if fault and not FAULT.fullmatch(fault):
        raise InvalidRequest(f"fault is {fault!r}; give a word of at most 40 lower-case letters")
    if engines_lost < 0 or (engines_lost and not fault):
        raise InvalidRequest(f"engines_lost is {engines_lost} with the fault {fault!r}; name the fault")
    return fault, engines_lost


def cut_notes(*notes: str) -> tuple[str, ...]:
    """Return texts that people have written, each at most LONGEST_NOTE characters long."""
    return tuple(note[:LONGEST_NOTE] for note in notes)


def check_group_ids(ids: Iterable[str]) -> None:
    """Errors: InvalidRequest for a text that is no group id."""
    for group_id in ids:
        if not GROUP_ID.fullmatch(group_id):
            raise InvalidRequest(f"{group_id!r} is not a group id; use the group_id of the lease")
