"""Lines of gRPC's C code on stderr: a refused handshake becomes a readable warning, others stay unchanged."""

import os
import subprocess
import sys

import pytest
from rpc.mutual_tls import WrittenLog
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
def test_a_line_about_a_refused_handshake_becomes_a_warning(line: bytes, says: str) -> None:
    written = WrittenLog()
    assert translate(line, written.log)
    assert len(written.lines) == 1
    assert "warning it: connection refused reason=" in written.lines[0]
    assert says in written.lines[0]


def test_other_lines_are_unchanged() -> None:
    written = WrittenLog()
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


def test_python_and_native_code_write_to_stderr_and_stderr_is_restored() -> None:
    status, text = stderr_of("pass")
    assert status == 0
    assert b"before \xff\n" in text
    assert b"from python\n" in text
    assert b"its certificate has expired" in text
    assert b"Handshake failed" not in text
    assert text.endswith(b"after\n")


@pytest.mark.parametrize("end", ["os.abort()", "os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_the_last_line_of_a_process_that_dies_is_not_lost(end: str) -> None:
    status, text = stderr_of(f"os.write(2, b'last words'); {end}")
    assert status != 0
    assert b"its certificate has expired" in text
    assert text.endswith(b"last words")
