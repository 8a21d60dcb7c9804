"""Refuse an expected output that is longer than a program may write: every program would fail it."""

from typing import Any

from slipstream.sandbox.job import OUTPUT_BYTES, compact
from slipstream.sandbox.values import to_plain
from slipstream.verifier.code.imports import UnusableTest


def check_output(expected: str, where: str) -> None:
    """Errors: UnusableTest for a standard output that is longer than any may be."""
    length = len(expected.rstrip().encode("utf-8", "replace"))
    if length >= OUTPUT_BYTES:  # a line ends in a byte more, and a value has one before it
        raise UnusableTest(
            f"{where}: {length:,} bytes are expected, and a program may write less than {OUTPUT_BYTES:,}"
        )


def check_value(expected: Any, where: str) -> None:
    """Errors: UnusableTest for a value that is longer than any may be, as it travels."""
    check_output(compact(to_plain(expected)), where)
