"""The threads and compiled loops that compare weights."""

import os
import subprocess
import sys
import threading

import pytest
from slipstream.weights.threads import BACKGROUND_NICENESS, _threads, in_pool, in_thread, results

IMPORTS = """
import sys
import slipstream.weights.base_copy, slipstream.weights.changes
print("numba" in sys.modules, "llvmlite" in sys.modules)
"""
FORKS = """
import os
from slipstream.weights.threads import in_pool, results
assert results(in_pool(abs, [-1, -2])) == [1, 2]
child = os.fork()
if not child:
    os._exit(results(in_pool(abs, [-3]))[0])
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
OF_LOWER_PRIORITY = """
import os, threading
from slipstream.weights.threads import in_thread
os.nice(19)
priority = lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
print(in_thread(priority, "test", background=True).result())
"""


def printed_by(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=60)
    return done.stdout.strip()


def test_numba_is_not_imported_before_a_delta_is_computed() -> None:
    """vLLM 0.32 does not start in a process that has imported llvmlite."""
    assert printed_by(IMPORTS) == "False False"


def test_a_forked_process_has_threads_of_its_own() -> None:
    assert printed_by(FORKS) == "3"


def test_an_error_is_raised_after_all_calls_have_ended() -> None:
    ended = []

    def divide(number: int) -> float:
        ended.append(number)
        return 1 / number

    with pytest.raises(ZeroDivisionError):
        results(in_pool(divide, [0, 1, 2, 4]))
    assert sorted(ended) == [0, 1, 2, 4]
    assert results(in_pool(divide, [1, 2, 4])) == [1, 0.5, 0.25]


def niceness(_: object = None) -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")
@pytest.mark.skipif(os.getpriority(os.PRIO_PROCESS, 0) >= BACKGROUND_NICENESS, reason="all threads give way")
def test_threads_in_the_background_give_way_and_no_others() -> None:
    usual, background = niceness(), BACKGROUND_NICENESS
    assert results(in_pool(niceness, range(4))) == [usual] * 4
    assert results(in_pool(niceness, range(4), background=True)) == [background] * 4
    in_background = in_thread(lambda: results(in_pool(niceness, range(4))), "test", background=True)
    assert in_background.result() == [background] * 4
    assert in_thread(niceness, "test").result() == usual
    assert in_thread(niceness, "test", background=True).result() == background
    assert niceness() == usual
    assert results(in_pool(niceness, range(4))) == [usual] * 4


def test_a_machine_that_forbids_priorities_keeps_those_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("os.setpriority", forbid)
    assert in_thread(lambda: 3, "test", background=True).result() == 3


def test_a_process_of_a_lower_priority_keeps_it() -> None:
    assert printed_by(OF_LOWER_PRIORITY) == "19"


@pytest.mark.parametrize(
    ("background", "gpu", "ranks", "threads"),
    [
        (False, False, 1, 2),
        (False, True, 1, 8),
        (False, True, 4, 4),
        (True, False, 1, 8),
        (False, True, 16, 2),
        (True, True, 4, 4),
        (True, False, 16, 1),
    ],
)
def test_the_threads_are_those_of_torch_or_the_idle_cores_where_they_take_none_from_a_computation(
    monkeypatch: pytest.MonkeyPatch, background: bool, gpu: bool, ranks: int, threads: int
) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    monkeypatch.setattr("slipstream.weights.threads.usable_cores", lambda: 16)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    assert _threads(background) == threads
