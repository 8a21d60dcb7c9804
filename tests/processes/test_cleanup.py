"""The processes that a command kills when it ends, and the dead processes that it reaps."""

import subprocess
import sys
from pathlib import Path

SERVICES = Path(__file__).parents[2] / "services"
SCRIPT = """
import os, subprocess, sys, time
from pathlib import Path
from slipstream.processes.lifetime.cleanup import ProcessCleanup

def zombies():
    stats = [p.read_text().rpartition(")")[2].split() for p in Path("/proc").glob("[0-9]*/stat") if own(p)]
    return sum(state == "Z" for state, *_ in stats)

def own(stat):
    try:
        return stat.read_text().rpartition(")")[2].split()[1] == str(os.getpid())
    except (FileNotFoundError, ProcessLookupError):
        return False

engine = "import os, time; pid = os.fork(); os._exit(0) if pid else (time.sleep(0.3), os._exit(0))"
with ProcessCleanup() as cleanup:
    pod = subprocess.Popen([sys.executable, "-c", engine + "; time.sleep(9)"])
    cleanup.started(pod.pid)
    failed = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    cleanup.started(failed.pid)
    while zombies() < 3:  # both pods, and the orphan of the first one
        time.sleep(0.05)
    print(cleanup.reap(), zombies(), pod.wait(), failed.wait(), cleanup.reap())
"""


OLDER = """
import subprocess, sys, time
from slipstream.processes.lifetime.cleanup import ProcessCleanup

sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
older = subprocess.Popen(sleeping)
with ProcessCleanup():
    younger = subprocess.Popen(sleeping)
print(older.poll(), younger.wait())
older.kill()
"""


def run(script: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        env={"PYTHONPATH": str(SERVICES), "PATH": "/usr/bin:/bin"},
    )
    return done.stdout.split()


def test_processes_that_are_older_than_the_command_are_left_alone() -> None:
    """A notebook that calls the command has such processes."""
    assert run(OLDER) == ["None", "-9"]


def test_children_of_a_dead_pod_are_reaped_and_the_exit_status_of_pods_is_kept() -> None:
    assert run(SCRIPT) == ["1", "2", "0", "3", "0"]
