"""`slipstream warmup`: only the cold start, for any model directory and any JSONL file."""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream.cli.checks.model import read_model
from slipstream.cli.checks.prompts import check_prompts
from slipstream.cli.errors import RunFailed, UsageError
from slipstream.cli.launch import cold_start, display, process
from slipstream.cli.launch.interrupt import Interrupt
from slipstream.config import RunConfig, WarmupConfig, load, load_config, parse_config
from slipstream.processes.lifetime.cleanup import ProcessCleanup

INTERRUPTED = 130


def warmup_config(
    file: Path | None, overrides: Sequence[str], *, model: Path | None, data: Path | None, steps: int | None
) -> RunConfig:
    """Return the configuration of a run, or the defaults, with the values of the command's options."""
    changes = list(overrides)
    if model is not None:
        changes += ["model.tiny=null", f"model.path={json.dumps(str(model))}"]
    if data is not None:
        changes.append(f"data={json.dumps({'kind': 'file', 'path': str(data)})}")
    if steps is not None:
        changes.append(f"warmup.steps={steps}")
    start: dict[str, Any] = {} if model else {"model": {"tiny": {}}}
    config = load_config(file, changes) if file else parse_config(start, changes, source="warmup")
    return config if config.warmup else config.model_copy(update={"warmup": WarmupConfig.model_validate({})})


def warmup_command(
    config: RunConfig, *, output: Path | None, command: tuple[str, ...] = cold_start.COMMAND
) -> int:
    """Make the model, print its directory and return the exit status. Errors: UsageError, RunFailed."""
    _require_ready(config, output)
    directory = output.absolute() if output else cold_start.cached_model(config)
    try:
        made = asyncio.run(_make(config, directory, command))
    except asyncio.CancelledError:
        return INTERRUPTED
    except process.PodFailed as error:
        raise RunFailed(str(error)) from error
    if not made:
        return INTERRUPTED
    print(f"model {directory}")
    return 0


async def _make(config: RunConfig, directory: Path, command: tuple[str, ...]) -> bool:
    interrupt = Interrupt()
    with ProcessCleanup(without=load.ENVIRONMENT) as cleanup:
        return await cold_start.cold_start(
            config,
            directory,
            environment=cleanup.environment,
            interrupted=interrupt.requested,
            say=display.PlainDisplay(0, sys.stdout).say,
            started=cleanup.started,
            command=command,
        )


def _require_ready(config: RunConfig, output: Path | None) -> None:
    model = read_model(config)
    problems = [*(model.problems if model else ()), *check_prompts(config, model)]
    errors = [str(problem) for problem in problems if problem.severity == "error"]
    if output is not None and output.exists() and (not output.is_dir() or any(output.iterdir())):
        errors.append(f"--output: {output} is there already; name a new directory")
    if errors:
        raise UsageError("\n  ".join(["warmup:", *errors]))
