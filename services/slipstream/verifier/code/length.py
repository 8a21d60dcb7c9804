"""Refuse an expected output that is longer than a program may write: every program would fail it."""

from typing import Any

from slipstream.sandbox import job, values
from slipstream.verifier.code.imports import UnusableTest


def check_output(expected: str, where: str) -> None:
    """Errors: UnusableTest for an expected standard output over OUTPUT_BYTES."""
    length = len(expected.rstrip().encode("utf-8", "replace"))
    if length >= job.OUTPUT_BYTES:  # a program writes one byte more: a newline, or the prefix of a value
        raise UnusableTest(
            f"{where}: {length:,} bytes are expected, and a program may write less than {job.OUTPUT_BYTES:,}"
        )


def check_value(expected: Any, where: str) -> None:
    """Errors: UnusableTest for an expected value whose encoding is over OUTPUT_BYTES."""
    check_output(job.compact(values.to_plain(expected)), where)
