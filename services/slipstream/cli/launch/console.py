"""The web console beside a run: a process of its own, which the run does not need."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

from slipstream.cli.launch.process import PodFailed, Process, stop_processes
from slipstream.cli.launch.run_directory import RunDirectory
from slipstream.config.sections.services import ConsoleConfig
from slipstream.processes.lifetime.cleanup import ProcessCleanup
from slipstream.processes.lifetime.left_over import TOKEN_VARIABLE

CONSOLE = "console"
NEEDED = ("fastapi", "uvicorn", "duckdb", "pyarrow")
HOW_TO_INSTALL = "pip install '.[console]' in a clone of Slipstream"
START_SECONDS, STOP_SECONDS = 600.0, 3.0


@asynccontextmanager
async def beside(
    run: RunDirectory, config: ConsoleConfig, cleanup: ProcessCleanup, *, say: Callable[[str], None]
) -> AsyncIterator[None]:
    """Run the console of a run directory as long as the context lasts, and print its address.

    An error of the console is printed, and changes nothing else.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if config.enabled and missing:
        say(f"no console: {' and '.join(missing)} not installed; {HOW_TO_INSTALL}")
    process = _start(run, config, cleanup, say) if config.enabled and not missing else None
    if process is None:
        yield
        return
    telling = asyncio.create_task(_tell(process, run.ready_file(CONSOLE), say))
    try:
        yield
    finally:
        telling.cancel()
        await stop_processes([process], seconds=STOP_SECONDS)


def _start(
    run: RunDirectory, config: ConsoleConfig, cleanup: ProcessCleanup, say: Callable[[str], None]
) -> Process | None:
    """Start the console; None if the system does not let it start."""
    ready_file = run.ready_file(CONSOLE)
    command = _command(run.path, config, ready_file)
    environment = {name: value for name, value in cleanup.environment.items() if name != TOKEN_VARIABLE}
    try:
        ready_file.unlink(missing_ok=True)
        process = Process(CONSOLE, command, log=run.log(CONSOLE), environment=environment)
    except OSError as error:
        say(f"no console: {error}")
        return None
    cleanup.spare(process.pid)
    return process


def _command(run_dir: Path, config: ConsoleConfig, ready_file: Path) -> tuple[str, ...]:
    whose = ("--ready-file", str(ready_file), "--parent", str(os.getpid()))
    return (sys.executable, "-m", "slipstream.console", str(run_dir), "--port", str(config.port), *whose)


async def _tell(process: Process, ready_file: Path, say: Callable[[str], None]) -> None:
    try:
        say(f"console http://{await process.ready(ready_file, seconds=START_SECONDS)}/")
    except (PodFailed, OSError, ValueError, TypeError) as failure:
        say(f"no console: {failure}")
