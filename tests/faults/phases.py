"""The phases of a run in which a test disturbs a process, as conditions on the files of the run."""

from collections.abc import Callable, Mapping

from faults.driver import FaultyRun

Condition = Callable[[FaultyRun, str], bool]


def starting(run: FaultyRun, name: str) -> bool:
    """Return whether the process exists and is not ready."""
    return run.pid(name) is not None and not (run.run_dir / "pods" / f"{name}.json").exists()


def first_batch(run: FaultyRun, name: str) -> bool:
    """Return whether the first evaluation has ended, and the process is ready (a rollout may be late).

    No step has been made by then, or on a slow machine the first ones.
    """
    is_ready = name == "redis" or (run.run_dir / "pods" / f"{name}.json").exists()
    return bool(run.rows("evaluation")) and is_ready


def training(run: FaultyRun, name: str) -> bool:
    """Return whether some steps have been made."""
    return run.version() >= 2


def checkpointing(run: FaultyRun, name: str) -> bool:
    """Return whether a checkpoint is due at the current version (every fifth)."""
    return run.version() >= 5 and run.version() % 5 == 0


def evaluating(run: FaultyRun, name: str) -> bool:
    """Return whether the evaluation of step 5 has begun and not ended."""
    return run.version() >= 5 and run.rows("evaluation")[-1]["step"] == 0


PHASES: Mapping[str, Condition] = {
    phase.__name__: phase for phase in (starting, first_batch, training, checkpointing, evaluating)
}
