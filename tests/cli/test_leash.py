"""What the launcher keeps of the processes under it."""

import subprocess
import sys
from pathlib import Path

SERVICES = Path(__file__).parents[2] / "services"
SCRIPT = """
import os, subprocess, sys, time
from pathlib import Path
from slipstream.cli.launch.leash import Leash

def zombies():
    stats = [p.read_text().rpartition(")")[2].split() for p in Path("/proc").glob("[0-9]*/stat") if own(p)]
    return sum(state == "Z" for state, *_ in stats)

def own(stat):
    try:
        return stat.read_text().rpartition(")")[2].split()[1] == str(os.getpid())
    except (FileNotFoundError, ProcessLookupError):
        return False

engine = "import os, time; pid = os.fork(); os._exit(0) if pid else (time.sleep(0.3), os._exit(0))"
with Leash() as leash:
    pod = subprocess.Popen([sys.executable, "-c", engine + "; time.sleep(9)"])
    leash.started(pod.pid)
    failed = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    leash.started(failed.pid)
    while zombies() < 3:  # the pod, the other pod, and what the first one had started
        time.sleep(0.05)
    print(leash.reap(), zombies(), pod.wait(), failed.wait(), leash.reap())
"""


OLDER = """
import subprocess, sys, time
from slipstream.cli.launch.leash import Leash

sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
older = subprocess.Popen(sleeping)
with Leash():
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


def test_what_was_there_before_is_left_alone() -> None:
    """As the processes of a notebook that calls the command."""
    assert run(OLDER) == ["None", "-9"]


def test_what_a_dead_pod_had_started_is_reaped_and_the_status_of_pods_is_left_alone() -> None:
    assert run(SCRIPT) == ["1", "2", "0", "3", "0"]
