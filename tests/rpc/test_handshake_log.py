"""What native code writes to stderr: refused handshakes in words, everything else as it was."""

import os
import subprocess
import sys

import pytest
from rpc.mutual_tls import Written
from slipstream.rpc.security.handshake_log import translate

FAILED = (
    b"I1121 22:42:54.273286 31338 ssl_transport_security.cc:2563] Handshake failed with error SSL_ERROR_SSL: "
)
NAME = b"E1121 22:50:24.676039 4986 ssl_transport_security.cc:3238] No match found for server name: replay\n"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            FAILED + b"error:1000007d:SSL routines::CERTIFICATE_VERIFY_FAILED: certificate has expired\n",
            "expired",
        ),
        (
            FAILED + b"error:100000c0:SSL routines::PEER_DID_NOT_RETURN_A_CERTIFICATE: x\n",
            "it showed no cert",
        ),
        (FAILED + b"something that nobody has seen yet\n", "something that nobody has seen yet"),
        (NAME, "it calls us replay, which is not a name of our certificate"),
    ],
)
def test_a_line_of_the_core_becomes_a_warning(line: bytes, says: str) -> None:
    written = Written()
    assert translate(line, written.log)
    assert len(written.lines) == 1
    assert "warning it: connection refused reason=" in written.lines[0]
    assert says in written.lines[0]


def test_other_lines_are_left_alone() -> None:
    written = Written()
    assert not translate(b"Handshake failed, said somebody else\n", written.log)
    assert not translate(b"I1121 22:42:54.2 3 chttp2_transport.cc:1403] Got goaway\n", written.log)
    assert written.lines == []


PROGRAM = """
import os, sys
from slipstream.rpc.security.handshake_log import translating_stderr
with translating_stderr("it", "info"):
    os.write(2, b"before " + bytes([0xff]) + b"\\n")
    print("from python", file=sys.stderr)
    os.write(2, HANDSHAKE)
    END
os.write(2, b"after\\n")
"""


def stderr_of(end: str) -> tuple[int, bytes]:
    program = PROGRAM.replace("HANDSHAKE", repr(FAILED + b"certificate has expired\n")).replace("END", end)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        timeout=20,
    )
    return done.returncode, done.stderr


def test_both_ways_lead_to_stderr_and_it_is_put_back() -> None:
    status, said = stderr_of("pass")
    assert status == 0
    assert b"before \xff\n" in said
    assert b"from python\n" in said
    assert b"its certificate has expired" in said
    assert b"Handshake failed" not in said
    assert said.endswith(b"after\n")


@pytest.mark.parametrize("end", ["os.abort()", "os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_the_last_words_of_a_process_that_dies_are_not_lost(end: str) -> None:
    status, said = stderr_of(f"os.write(2, b'last words'); {end}")
    assert status != 0
    assert b"its certificate has expired" in said
    assert said.endswith(b"last words")
