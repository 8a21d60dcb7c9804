"""One life of a run: pods up, rows shown, everything stopped, the summary written.

    supervisor.run ─▶ (learner done | interrupt | failure) ─▶ stop pods that work ─▶ read the ledger
      _watch: rows ─▶ display                              ─▶ stop verifier and replay ─▶ count what is left
                                                           ─▶ summary.json ─▶ plots
Pods that work: learner, rollouts and actors. The learner is waited for while its checkpoint grows; everything
else has a time of its own.
"""

import asyncio
import sys
import time
from collections.abc import Hashable, Sequence
from typing import Any

from slipstream.cli.errors import RunFailed
from slipstream.cli.launch import history, process, run_directory, run_warnings, supervisor
from slipstream.cli.launch.display import Display
from slipstream.cli.launch.interrupt import Interrupt
from slipstream.cli.launch.ledger import grpc_logs_errors_only, read_ledger, read_stats
from slipstream.cli.launch.pods import LEARNER, REPLAY, PodSpec, address_environment
from slipstream.cli.launch.summary import describe, summarize, write_summary
from slipstream.config import RunConfig
from slipstream.processes.lifetime.cleanup import ProcessCleanup

LOOK_SECONDS = 0.25
ORPHAN_GRACE_SECONDS = 0.5
PLOT_SECONDS, INTERRUPTED_PLOT_SECONDS = 60.0, 20.0
LINE_EVERY_SECONDS = 3.0
HOW_TO_RESUME = "to go on: the same command with --resume"


class Session:
    """Runs the pods over a run directory once."""

    def __init__(
        self,
        config: RunConfig,
        run: run_directory.RunDirectory,
        pods: Sequence[PodSpec],
        cleanup: ProcessCleanup,
        display: Display,
    ) -> None:
        self._config = config
        self._run = run
        self._cleanup = cleanup
        self._display = display
        self._history = history.History()
        self._tail = history.Tail(run.metrics)
        self._writing: run_directory.Writing | None = None
        self._next_line = 0.0
        self._began = time.time()
        self._supervisor = supervisor.Supervisor(
            pods, run, environment=cleanup.environment, say=display.say, started=cleanup.started
        )
        names = [pod.name for pod in pods]
        self._warnings = run_warnings.RunWarnings(config, run, names, say=display.say, history=self._history)

    async def live(self, interrupt: Interrupt) -> dict[str, Any]:
        """From the first pod to the plots; returns the summary. Errors: RunFailed when all has stopped."""
        self._take(show=False)
        failure = await self._train(interrupt)
        if interrupt.requested.is_set():
            self._display.say(
                "stopping: the learner finishes its step and checkpoints (Ctrl-C again kills it)"
            )
        summary = await self._stop(interrupt)
        write_summary(self._run.summary, summary)
        await self._plot(interrupt)
        if failure is not None:
            raise RunFailed(f"the run failed: {failure}\n{HOW_TO_RESUME}")
        self._tell(summary)
        if (loss := self._loss()) is not None:
            raise RunFailed(loss)
        return summary

    async def _train(self, interrupt: Interrupt) -> process.PodFailed | None:
        watcher, opener = asyncio.create_task(self._watch()), asyncio.create_task(self._end_pause())
        watcher.add_done_callback(self._say_if_blind)
        try:
            await self._supervisor.run(interrupt.requested)
        except process.PodFailed as failure:
            return failure
        finally:
            for task in (watcher, opener):
                task.cancel()
            await asyncio.gather(watcher, opener, return_exceptions=True)
        return None

    async def _end_pause(self) -> None:
        """End the pause that an earlier life of the run may have left: who starts a run wants it to train.

        A pause that is newer than this life stays.
        """
        address = await self._supervisor.address_of(REPLAY)
        stats = await read_stats(address, self._config.rpc)
        if stats is not None and stats.admission.paused and (stats.admission.since or 0.0) > self._began:
            return
        with grpc_logs_errors_only():
            from slipstream.rpc.control import ControlFailed, set_admission

        try:
            change = await set_admission(address, self._config.rpc, paused=False, by="slipstream run")
        except ControlFailed as error:
            self._display.say(f"whether the run is paused is not known: {error}")
            return
        if change.changed:
            self._display.say("the run was paused, and goes on")

    def _say_if_blind(self, watcher: asyncio.Task[None]) -> None:
        """Print an error if the display of the progress has failed; the run continues."""
        error = None if watcher.cancelled() else watcher.exception()
        if error is not None:
            what = f"{type(error).__name__}: {error}"
            self._display.say(f"no more steps are shown ({what}); {self._run.metrics} has them")

    async def _watch(self) -> None:
        """Show rows as they come, and what is being waited for until the first one."""
        started, waiting, told = time.monotonic(), True, False
        while True:
            waiting = not self._take(show=True) and waiting
            missing = self._supervisor.waiting_for
            if not missing and not told and not self._config.rollout.workers:
                self._display.say(self._how_to_join())
                told = True
            if waiting:
                what = ", ".join(missing) if missing else "the first step"
                self._display.waiting(what, time.monotonic() - started)
            else:
                self._display.tick()
            await asyncio.sleep(LOOK_SECONDS)

    def _take(self, *, show: bool) -> bool:
        """Take in the rows that are new; True when there were any."""
        rows = self._tail.rows()
        for row in rows:
            self._history.add(row)
        if show:
            self._cleanup.reap()
            self._warnings.look(rows, replay=self._supervisor.addresses.get(REPLAY))
        if show and rows:
            self._display.rows(rows, self._history)
        return bool(rows)

    async def _stop(self, interrupt: Interrupt) -> dict[str, Any]:
        """Stop everything in order; the summary of what it came to."""
        self._writing = self._run.writing
        longest = max((seconds for _, seconds in self._history.column("train_seconds")), default=0.0)
        await self._supervisor.stop_work(self._progress, step_seconds=longest)
        self._take(show=True)
        address = self._supervisor.addresses.get(REPLAY)
        ledger = await read_ledger(address, self._config.rpc) if address else None
        await self._supervisor.stop_services()
        orphans = await asyncio.to_thread(self._cleanup.sweep, grace=ORPHAN_GRACE_SECONDS)
        interrupted = not self._history.has_finished(self._config.learner.steps)
        return summarize(self._history, ledger=ledger, orphans=orphans, interrupted=interrupted)

    def _progress(self) -> Hashable:
        """Return a value that changes while the learner writes, and show the progress every few seconds."""
        writing = self._run.writing
        moved, self._writing = writing != self._writing, writing  # a killed one's rest does not move
        if writing is not None and moved and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_EVERY_SECONDS
            self._display.say(f"the learner is {writing}")
        return writing, self._run.last_checkpoint

    def _loss(self) -> str | None:
        """Return the message on a learner that failed after its start; None if it ended normally."""
        if LEARNER not in self._supervisor.addresses:
            return None
        learner = self._supervisor.processes[LEARNER]
        if not learner.status:
            return None
        step = self._run.last_checkpoint
        how = "was killed" if learner.status < 0 else process.ended_how(learner.status)
        if step is not None and step >= max(self._history.steps, default=0):
            return f"the learner {how} after its checkpoint of step {step}; see {learner.log}"
        last = "there is none" if step is None else f"the last one is of step {step}"
        return f"the learner {how} before it could write a checkpoint; {last}; see {learner.log}"

    async def _plot(self, interrupt: Interrupt) -> None:
        """Draw the plots in a child process with a deadline, so that they cannot delay the end of the run."""
        seconds = INTERRUPTED_PLOT_SECONDS if interrupt.requested.is_set() else PLOT_SECONDS
        command = (sys.executable, "-m", "slipstream.cli.launch.plots", str(self._run.path))
        if not self._history.steps:
            return
        plots = process.Process(
            "plots", command, log=self._run.log("plots"), environment=self._cleanup.environment
        )
        self._cleanup.started(plots.pid)
        try:
            status = await asyncio.wait_for(plots.ended(), timeout=seconds)
        except TimeoutError:
            plots.kill()
            status = -1
        if status != 0:
            self._display.say(f"the plots were not drawn: see {plots.log}; again: {' '.join(command[1:])}")

    def _tell(self, summary: dict[str, Any]) -> None:
        """Show the last lines of the run."""
        for line in describe(summary):
            self._display.say(line)
        self._display.say(f"summary {self._run.summary}, plots {self._run.plots}")
        if summary["interrupted"]:
            self._display.say(f"interrupted at step {summary['steps']}; {HOW_TO_RESUME}")

    def _how_to_join(self) -> str:
        environment = address_environment(self._supervisor.addresses)
        variables = " ".join(f"{name}={address}" for name, address in environment.items())
        command = f"python -m slipstream.rollout --config {self._run.config} --name rollout-0"
        return f"no rollouts are started here; start them with:\n  {variables} \\\n  {command}"
