"""`slipstream run`: from a configuration to a run directory.

validate ─▶ cold start ─▶ run directory ─▶ session: pods up ─▶ steps ─▶ stop ─▶ summary, plots
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from slipstream.cli.checks.context import with_context
from slipstream.cli.checks.model import read_model
from slipstream.cli.errors import RunFailed, UsageError
from slipstream.cli.hub import write_revisions
from slipstream.cli.launch import cold_start, console, process, run_directory, session
from slipstream.cli.launch.display import Display, open_display
from slipstream.cli.launch.interrupt import Interrupt
from slipstream.cli.launch.pods import PodSpec, local_pods
from slipstream.cli.launch.stages import Stages, changed_stages
from slipstream.config import RunConfig, load
from slipstream.processes.lifetime.cleanup import ProcessCleanup

INTERRUPTED = 130


def run_command(
    config: RunConfig,
    *,
    local: RunConfig | None = None,
    resume: str | None = None,
    plain: bool = False,
    pods: Callable[[RunConfig], tuple[PodSpec, ...]] = local_pods,
    cold_start_command: tuple[str, ...] = cold_start.COMMAND,
) -> int:
    """Run a valid configuration to its end, and return the exit status.

    `local`: the configuration with commits as revisions, and with a local directory of the model.
    `resume`: None for a new run, "" for the newest run, or a run directory.
    Errors: UsageError before anything starts; RunFailed after all processes have stopped.
    """
    if config.rpc.tls is not None:
        raise UsageError(
            "rpc.tls: one certificate cannot be that of every pod, and `slipstream run` starts all of them; "
            "leave it out, they stay on loopback"
        )
    try:
        return asyncio.run(_run(config, local or config, resume, plain, pods, cold_start_command))
    except asyncio.CancelledError:
        return INTERRUPTED


async def _run(
    source: RunConfig,
    config: RunConfig,
    resume: str | None,
    plain: bool,
    pods: Callable[[RunConfig], tuple[PodSpec, ...]],
    command: tuple[str, ...],
) -> int:
    interrupt = Interrupt()
    resumed = None if resume is None else _resumable(source, resume)
    with ProcessCleanup(without=load.ENVIRONMENT) as cleanup:
        display = open_display(config, plain=plain or bool(config.stages))
        try:
            model = await _model(config, resumed, interrupt, cleanup, display, command)
            if model is None:
                display.say("interrupted during the cold start: nothing was started")
                return 0
            run = resumed or run_directory.make_run_directory(config)
            with run_directory.RunLock(run):
                resolved = _resolve(config, run, model)
                run.write_config(resolved, source=source)
                write_revisions(run.path, source, config)
                _greet(display, run, resumed=resumed is not None)
                stages = Stages(
                    config,
                    run,
                    interrupt,
                    cleanup,
                    display,
                    pods=pods,
                    supervised_command=command,
                    plain=plain,
                )
                async with console.beside(run, config.console, cleanup, say=stages.say):
                    if config.stages:
                        await stages.live(model)
                    else:
                        await session.Session(resolved, run, pods(resolved), cleanup, display).live(interrupt)
            return 0
        finally:
            display.close()


def _resumable(config: RunConfig, name: str) -> run_directory.RunDirectory:
    """Return the run to resume. Errors: UsageError if the configuration now describes another run."""
    run = run_directory.find_run_directory(config, name)
    before = run.read_source()
    changed = _changed(before, config) if before else []
    if config.stages or (before and before.stages):
        changed = [*changed, *changed_stages(before, config, run)]
    if changed:
        raise UsageError(
            f"--resume: {run.path} was started with another {' and '.join(changed)}; put it back"
        )
    return run


def _changed(before: RunConfig, now: RunConfig) -> list[str]:
    """Return the changed keys among those on which the checkpoint or the buffered groups depend."""
    changed = [key for key in ("model", "data", "seed") if getattr(before, key) != getattr(now, key)]
    if {reward.name for reward in before.rewards} != {reward.name for reward in now.rewards}:
        changed.append("set of reward names")
    if before.rollout.temperature != now.rollout.temperature:
        changed.append("rollout.temperature")
    return changed


async def _model(
    config: RunConfig,
    resumed: run_directory.RunDirectory | None,
    interrupt: Interrupt,
    cleanup: ProcessCleanup,
    display: Display,
    command: tuple[str, ...],
) -> Path | None:
    """Return the directory of the initial model, after a cold start if it needs one; None when
    interrupted."""
    before = run_directory.stored_config(resumed).model.path if resumed else None
    if not cold_start.needs_cold_start(config):
        assert config.model.path is not None
        return config.model.path.absolute()
    output = before or cold_start.cached_model(config)
    try:
        made = await cold_start.cold_start(
            config,
            output,
            environment=cleanup.environment,
            interrupted=interrupt.requested,
            say=display.say,
            started=cleanup.started,
            command=command,
        )
    except process.PodFailed as error:
        raise RunFailed(str(error)) from error
    return output if made else None


def _resolve(config: RunConfig, run: run_directory.RunDirectory, model: Path) -> RunConfig:
    """Return the configuration that the pods read, with absolute paths."""
    paths = {"run_dir": run.path, "runs_dir": config.runs_dir.absolute()}
    resolved = cold_start.warmed(config, model).model_copy(update=paths)
    return with_context(resolved, read_model(resolved))


def _greet(display: Display, run: run_directory.RunDirectory, *, resumed: bool) -> None:
    display.follow(run)
    display.say(f"{'resuming' if resumed else 'run'} {run.path}")
    display.say(f"logs {run.path / 'logs'}")
