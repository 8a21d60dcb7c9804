"""One line says why a child process has not reported."""

import subprocess
import sys

import pytest
from slipstream.processes.failure import why_failed

LOUD = "import sys; sys.stderr.write('first\\nlast\\n'); sys.stderr.flush(); "


def failure(code: str) -> str:
    """Return why a child process with this code failed within a second."""
    with pytest.raises(subprocess.SubprocessError) as raised:
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1, check=True)
    return why_failed(raised.value)


def test_it_is_the_last_line_of_the_error_output() -> None:
    assert failure(LOUD + "sys.exit(3)") == "last"


def test_a_child_that_wrote_nothing_has_its_status() -> None:
    assert failure("import os; os._exit(5)").endswith("returned non-zero exit status 5.")


def test_a_child_that_took_too_long_is_said_to_have() -> None:
    """Its error has the output as bytes, also where the caller asked for text."""
    assert failure(LOUD + "import time; time.sleep(60)") == "it took more than 1 s"


def test_an_output_that_cannot_be_read_is_the_error_of_the_reader() -> None:
    assert why_failed(ValueError("line 1\nno JSON")) == "no JSON"
    assert why_failed(OSError()) == "OSError"
