"""The moments of a run at which a process can be disturbed, as conditions on what the run has written."""

from collections.abc import Callable, Mapping

from faults.driver import FaultyRun

Condition = Callable[[FaultyRun, str], bool]


def starting(run: FaultyRun, name: str) -> bool:
    """The process exists and has not said that it is ready."""
    return run.pid(name) is not None and not (run.run_dir / "pods" / f"{name}.json").exists()


def first_batch(run: FaultyRun, name: str) -> bool:
    """Everybody is ready, and nothing has been trained."""
    return bool(run.rows("evaluation")) and run.version() == 0


def training(run: FaultyRun, name: str) -> bool:
    """Some steps have been made."""
    return run.version() >= 2


def checkpointing(run: FaultyRun, name: str) -> bool:
    """A checkpoint is due at this version (every fifth)."""
    return run.version() >= 5 and run.version() % 5 == 0


def evaluating(run: FaultyRun, name: str) -> bool:
    """An evaluation was begun at step 5, and has not been reported."""
    return run.version() >= 5 and run.rows("evaluation")[-1]["step"] == 0


PHASES: Mapping[str, Condition] = {
    phase.__name__: phase for phase in (starting, first_batch, training, checkpointing, evaluating)
}
