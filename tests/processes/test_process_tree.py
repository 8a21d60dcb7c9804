"""The children of a process, read from /proc."""

import subprocess
import sys
from pathlib import Path

from slipstream.processes.lifetime.process_tree import children


def test_a_child_is_listed_until_it_is_reaped() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert child.pid in children()
    child.communicate(b"\n")
    assert child.pid not in children()


def test_a_thread_that_ends_while_the_list_is_read_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "task" / "7").mkdir(parents=True)  # as /proc shows a thread that has just ended
    alive = tmp_path / "task" / "8"
    alive.mkdir()
    (alive / "children").write_text("12 34 ")
    assert children(tmp_path) == [12, 34]
