"""Refuse an expected output that is longer than a program may write: every program would fail it."""

from typing import Any

from slipstream.sandbox.job import OUTPUT_BYTES, compact
from slipstream.sandbox.values import to_plain
from slipstream.verifier.code.imports import UnusableTest


def check_output(expected: str, where: str) -> None:
    """Errors: UnusableTest for an expected standard output over OUTPUT_BYTES."""
    length = len(expected.rstrip().encode("utf-8", "replace"))
    if length >= OUTPUT_BYTES:  # a program writes one byte more: a newline, or the prefix of a value
        raise UnusableTest(
            f"{where}: {length:,} bytes are expected, and a program may write less than {OUTPUT_BYTES:,}"
        )


def check_value(expected: Any, where: str) -> None:
    """Errors: UnusableTest for an expected value whose encoding is over OUTPUT_BYTES."""
    check_output(compact(to_plain(expected)), where)
