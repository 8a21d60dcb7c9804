"""The cold start: makes the model that reinforcement learning starts from, or finds it in the cache.

cache_dir/<digest>/        the complete Hugging Face directory, renamed into place
cache_dir/<digest>.log     the log of its training
cache_dir/<digest>.lock    a lock, so that two commands do not make the same model
"""

import asyncio
import fcntl
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from slipstream.cli.launch.columns import duration
from slipstream.cli.launch.history import Row, Tail, number
from slipstream.cli.launch.process import PodFailed, Process, ended_how, stop_processes
from slipstream.config import RunConfig, WarmupConfig, data, dump_config

FORMAT = 1
COMMAND = (sys.executable, "-m", "slipstream.learner.stages.warmup")
LOCK_SECONDS = 3600.0
LOOK_SECONDS = 0.2
STOP_SECONDS = 3.0
LINE_EVERY_SECONDS = 3.0


def needs_cold_start(config: RunConfig) -> bool:
    """Return whether the configuration has a tiny model or a `warmup` section."""
    return config.model.tiny is not None or config.warmup is not None


def cached_model(config: RunConfig) -> Path:
    """Return the cached directory for this configuration; equal inputs give the same directory."""
    warmup = _settings(config.warmup)
    inputs = {
        "format": FORMAT,
        "model": config.model.model_dump(mode="json"),
        "warmup": warmup.filled_in(config.model).model_dump(mode="json", exclude={"cache_dir"}),
        "data": config.data.model_dump(mode="json") if warmup.steps else None,
        "files": _file_states(config),
        "seed": config.seed,
    }
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]
    return warmup.cache_dir.expanduser().absolute() / digest


def warmed(config: RunConfig, model: Path) -> RunConfig:
    """Return the configuration that starts from the model in this directory."""
    revision = config.model.revision if model == config.model.path else None
    source = config.model.model_copy(update={"path": model, "tiny": None, "revision": revision})
    return config.model_copy(update={"model": source, "warmup": None})


async def cold_start(
    config: RunConfig,
    output: Path,
    *,
    environment: Mapping[str, str],
    interrupted: asyncio.Event,
    say: Callable[[str], None],
    started: Callable[[int], None] = lambda pid: None,
    command: tuple[str, ...] = COMMAND,
    what: str = "cold start",
) -> bool:
    """Make the model in `output` unless it exists; return False when interrupted. Errors: PodFailed."""
    output.parent.mkdir(parents=True, exist_ok=True)
    async with _lock(output.with_name(f"{output.name}.lock"), interrupted, say, what):
        if interrupted.is_set():
            return False
        if (output / "config.json").exists():
            say(f"{what}: {output} (cached)")
            return True
        explicit = config.model_copy(update={"warmup": _settings(config.warmup)})
        with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
            config_file = Path(folder) / "config.yaml"
            config_file.write_text(dump_config(explicit), encoding="utf-8")
            arguments = ("--config", str(config_file), "--output", str(output), "--parent", str(os.getpid()))
            log = output.with_name(f"{output.name}.log")
            log.unlink(missing_ok=True)
            process = Process("warmup", (*command, *arguments), log=log, environment=environment)
            started(process.pid)
            try:
                return await _follow(process, output, interrupted, say, what)
            finally:
                await stop_processes([process], seconds=STOP_SECONDS)


async def _follow(
    process: Process, output: Path, interrupted: asyncio.Event, say: Callable[[str], None], what: str
) -> bool:
    """Show the progress of a cold start until it ends."""
    tail, progress = Tail(process.log), Progress(say, what)
    say(f"{what}: making {output}, log {process.log}")
    while process.status is None and not interrupted.is_set():
        progress.show(tail.rows())
        await asyncio.sleep(LOOK_SECONDS)
    progress.show(tail.rows())
    if interrupted.is_set():
        return False
    if process.status != 0:
        raise PodFailed(f"{what} {ended_how(process.status or 0)}", process)
    if not (output / "config.json").exists():
        raise PodFailed(f"{what} ended without a model in {output}", process)
    return True


class Progress:
    """Prints a line every few seconds, and always for the first and the last step."""

    def __init__(self, say: Callable[[str], None], what: str) -> None:
        self._say = say
        self._what = what
        self._next = 0.0

    def show(self, rows: Sequence[Row]) -> None:
        """Print lines for new rows of the cold start."""
        for row in rows:
            step, steps = int(number(row, "step")), int(number(row, "steps"))
            due = time.monotonic() >= self._next or step == steps
            if "phase" in row:
                self._say_phase(row)
            elif row.get("done"):
                self._say(f"{self._what}: done{_accuracy(row)}")
            elif "step" in row and due:
                left = f"  time left {duration(number(row, 'seconds_left'))}" if "seconds_left" in row else ""
                self._say(f"{self._what}: step {step}/{steps}  loss {number(row, 'loss'):.3f}{left}")
                self._next = time.monotonic() + LINE_EVERY_SECONDS

    def _say_phase(self, row: Row) -> None:
        """Print a phase other than training; for a phase with a count, one line every few seconds."""
        done, of = int(number(row, "done_of_phase")), int(number(row, "of_phase"))
        if not done or done == of or time.monotonic() >= self._next:
            self._say(f"{self._what}: {row['phase']}" + (f" {done}/{of}" if of else ""))
            self._next = time.monotonic() + LINE_EVERY_SECONDS


def _accuracy(row: Row) -> str:
    """Return the text of the accuracy; empty if it was not measured."""
    return "" if row.get("accuracy") is None else f", accuracy {number(row, 'accuracy'):.3f}"


@asynccontextmanager
async def _lock(
    path: Path, interrupted: asyncio.Event, say: Callable[[str], None], what: str
) -> AsyncIterator[None]:
    """Lock a file, unless interrupted; the kernel releases the lock when the process ends."""
    deadline = time.monotonic() + LOCK_SECONDS
    with path.open("ab") as stream:
        if not _try_lock(stream.fileno()):
            say(f"{what}: waiting for another command that makes the same model ({path})")
        while not _try_lock(stream.fileno()) and not interrupted.is_set():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} was held for {LOCK_SECONDS:g} s")
            await asyncio.sleep(LOOK_SECONDS)
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _settings(warmup: WarmupConfig | None) -> WarmupConfig:
    """Return the `warmup` section; without one, a tiny model is initialised and not trained."""
    return warmup or WarmupConfig.model_validate({"steps": 0})


def _file_states(config: RunConfig) -> list[tuple[str, int, int]]:
    """Return path, size and time of the input files, which identify their content in the digest."""
    files = [part for part in data.parts(config.data) if isinstance(part, data.FileData)]
    paths = [path for file in files for path in (file.path, file.held_out_path) if path is not None]
    if config.model.path is not None:
        paths += sorted(config.model.path.glob("*.safetensors")) + sorted(config.model.path.glob("*.json"))
    states = [(path, path.stat()) for path in paths if path.exists()]
    return [(str(path.absolute()), state.st_size, state.st_mtime_ns) for path, state in states]
