"""The report of a failed process has its first exception, and not those that followed from it."""

import asyncio
import os
import sys
from pathlib import Path

from slipstream.cli.launch.process import LONGEST_ERROR, PodFailed, Process, first_error

ENGINE = """\
(Worker pid=5) WARNING 11-22 17:17:14 [cpu_worker.py:114] libiomp is not found: ImportError
(EngineCore pid=4) ERROR 11-22 17:17:15 [core.py:1510] EngineCore failed to start.
(EngineCore pid=4) ERROR 11-22 17:17:15 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=4) ERROR 11-22 17:17:15 [core.py:1510]     raise ValueError(
(EngineCore pid=4) ERROR 11-22 17:17:15 [core.py:1510] ValueError: one request does not fit.
Traceback (most recent call last):
  File "core.py", line 1514, in run_engine_core
    raise e
ValueError: one request does not fit.
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}
"""


def test_the_first_exception_is_that_of_the_engine() -> None:
    assert first_error(ENGINE.splitlines()) == "ValueError: one request does not fit."


def test_an_exception_with_a_package_name_is_recognized_and_a_long_one_is_cut() -> None:
    assert first_error(["torch.cuda.OutOfMemoryError: no memory"]) == "torch.cuda.OutOfMemoryError: no memory"
    assert len(first_error(["OSError: " + "x" * 5000]) or "") == LONGEST_ERROR


def test_a_log_without_an_exception_has_no_first_error() -> None:
    assert first_error(["2026-11-22 info rollout: ready", "errors: 0", ""]) is None


def test_a_pod_that_fails_is_reported_with_its_first_error(tmp_path: Path) -> None:
    program = f"import sys; sys.stderr.write({ENGINE!r} + 'later line\\n' * 50); sys.exit(1)"
    log = tmp_path / "rollout-0.log"
    log.write_text("KeyError: of an earlier life\n")
    process = Process("rollout-0", (sys.executable, "-c", program), log=log, environment=dict(os.environ))
    assert asyncio.run(process.ended()) == 1
    lines = str(PodFailed("rollout-0 exited with status 1", process)).splitlines()
    assert lines[0] == (
        "rollout-0 exited with status 1; its first error: ValueError: one request does not fit."
    )
    assert lines[1] == f"the end of {log}:"
