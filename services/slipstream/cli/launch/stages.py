"""`slipstream run` with stages: one after the other, each in a directory of its own inside the run's.

    initial model ─▶ stages/01_NAME ─▶ model ─▶ stages/02_NAME ─▶ model ─▶ … ─▶ RUN/model, a table

A stage is done when its stage.json is there: it appears in one rename, after the model is durable. A run that
is resumed passes over those and goes on inside the one that was not done.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.cli.checks.context import with_context
from slipstream.cli.checks.model import read_model
from slipstream.cli.errors import RunFailed, UsageError
from slipstream.cli.launch import cold_start, history, process, run_directory, session
from slipstream.cli.launch.display import Display, open_display
from slipstream.cli.launch.interrupt import Interrupt
from slipstream.cli.launch.pods import PodSpec
from slipstream.cli.launch.summary import write_summary
from slipstream.config import RunConfig, stages
from slipstream.config.stage_runs import StageRun, stage_runs
from slipstream.processes.lifetime.cleanup import ProcessCleanup

DONE = "stage.json"
Summary = Mapping[str, Any]


class Stages:
    """Runs the stages that are not complete. Invariant: each starts from the model of the stage before it."""

    def __init__(
        self,
        config: RunConfig,
        run: run_directory.RunDirectory,
        interrupt: Interrupt,
        cleanup: ProcessCleanup,
        display: Display,
        *,
        pods: Callable[[RunConfig], tuple[PodSpec, ...]],
        supervised_command: tuple[str, ...],
        plain: bool,
    ) -> None:
        self._runs = stage_runs(config)
        self._run = run
        self._interrupt = interrupt
        self._cleanup = cleanup
        self._display = display
        self._shown = display  # the panel of a stage while that stage runs
        self._pods = pods
        self._command = supervised_command
        self._plain = plain

    def say(self, line: str) -> None:
        """Show a line on the display that is on the terminal now: a panel would draw over any other's."""
        self._shown.say(line)

    async def live(self, model: Path) -> None:
        """From `model` through all stages; returns early when interrupted. Errors: RunFailed."""
        summaries: list[Summary] = []
        for stage_run in self._runs:
            directory = self._run.stage(stage_run.folder)
            title = f"stage {stage_run.position + 1}/{len(self._runs)} {stage_run.stage.name}"
            summary = read_done(directory)
            if summary is None and not self._interrupt.requested.is_set():
                self._display.say(f"{title} ({stage_run.stage.kind}) starts from {model}")
                summary = await self._do(stage_run, directory, model)
            if summary is None:
                self._display.say(f"interrupted at {title}; to go on: the same command with --resume")
                return
            summaries.append(summary)
            self._display.say(f"{title}: {describe(summary)}")
            model = directory.path / "model"
        _finish(self._run, model, summaries)
        for line in table(summaries):
            self._display.say(line)
        self._display.say(f"model {self._run.path / 'model'}")

    async def _do(
        self, stage_run: StageRun, directory: run_directory.RunDirectory, model: Path
    ) -> Summary | None:
        """Run one stage to its end; None when it was interrupted."""
        directory.make_folders()
        config = resolved(stage_run, directory, model)
        directory.write_config(config, source=stage_run.config)
        if isinstance(stage_run.stage, stages.SupervisedStage):
            metrics = await self._supervised(config, directory, stage_run.stage.name)
        else:
            metrics = await self._session(config, directory)
        if metrics is None:
            return None
        summary = {
            "name": stage_run.stage.name,
            "kind": stage_run.stage.kind,
            "started_from": str(model),
            **metrics,
        }
        write_summary(directory.path / DONE, summary)
        return summary

    async def _supervised(
        self, config: RunConfig, directory: run_directory.RunDirectory, name: str
    ) -> Summary | None:
        output = directory.path / "model"
        try:
            made = await cold_start.cold_start(
                config,
                output,
                environment=self._cleanup.environment,
                interrupted=self._interrupt.requested,
                say=self._display.say,
                started=self._cleanup.started,
                command=self._command,
                what=name,
            )
        except process.PodFailed as error:
            raise RunFailed(str(error)) from error
        if not made:
            return None
        rows = history.Tail(output.with_name(f"{output.name}.log")).rows()
        directory.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        return _of_supervised(rows)

    async def _session(self, config: RunConfig, directory: run_directory.RunDirectory) -> Summary | None:
        self._shown = display = open_display(config, plain=self._plain)
        display.follow(directory)
        try:
            summary = await session.Session(
                config, directory, self._pods(config), self._cleanup, display
            ).live(self._interrupt)
        finally:
            display.close()
            self._shown = self._display
        if summary["interrupted"]:
            return None
        return _of_session(summary, history.Tail(directory.metrics).rows())


def resolved(stage_run: StageRun, directory: run_directory.RunDirectory, model: Path) -> RunConfig:
    """Return the configuration that the pods of a stage read: it starts from `model`, in its own
    directory."""
    source = stage_run.config.model.model_copy(update={"path": model, "tiny": None, "revision": None})
    config = stage_run.config.model_copy(update={"model": source, "run_dir": directory.path})
    return with_context(config, read_model(config))


def read_done(directory: run_directory.RunDirectory) -> Summary | None:
    """Return the summary of a stage; None if it is not complete."""
    file = directory.path / DONE
    if not file.exists():
        return None
    result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return result


def changed_stages(before: RunConfig | None, now: RunConfig, run: run_directory.RunDirectory) -> list[str]:
    """Return the stages that have started and differ in the new configuration.

    Errors: UsageError when all stages of the new configuration are done.
    """
    runs = stage_runs(now)
    if runs and all(read_done(run.stage(stage_run.folder)) is not None for stage_run in runs):
        raise UsageError(
            f"--resume: {run.path} has finished its {len(runs)} stages; add one to go on, or leave --resume "
            "out to start anew"
        )
    old = stage_runs(before) if before is not None else ()
    begun = [stage_run for stage_run in old if run.stage(stage_run.folder).config.exists()]
    return [
        f"{stage_run.key} ({stage_run.stage.name})"
        for stage_run in begun
        if stage_run.position >= len(runs) or _differs(stage_run, runs[stage_run.position])
    ]


def describe(summary: Summary) -> str:
    """Return one line on a complete stage."""
    before, after = _show(summary["accuracy_before"]), _show(summary["accuracy_after"])
    counts = ", ".join(f"{number:,} {name}" for name, number in summary["counts"].items())
    return f"held-out accuracy {before} → {after}" + (f"; {counts}" if counts else "")


def table(summaries: Sequence[Summary]) -> list[str]:
    """Return a table of all stages, one in each line."""
    rows = [("stage", "kind", "before", "after", "")]
    for summary in summaries:
        counts = ", ".join(f"{number:,} {name}" for name, number in summary["counts"].items())
        accuracy = (_show(summary["accuracy_before"]), _show(summary["accuracy_after"]))
        rows.append((summary["name"], summary["kind"], *accuracy, counts))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        "  ".join([*(text.ljust(w) for text, w in zip(row, widths, strict=False)), row[4]]).rstrip()
        for row in rows
    ]


def _differs(old: StageRun, new: StageRun) -> bool:
    same_stage = old.stage == new.stage
    return not same_stage or any(
        getattr(old.config, key) != getattr(new.config, key) for key in ("data", "rewards", "seed")
    )


def _of_supervised(rows: Sequence[history.Row]) -> Summary:
    before = next((row["accuracy_before"] for row in rows if "accuracy_before" in row), None)
    after = next((row["accuracy"] for row in rows if row.get("done")), None)
    steps = max((row["step"] for row in rows if isinstance(row.get("step"), int)), default=0)
    return {"accuracy_before": before, "accuracy_after": after, "counts": {"steps": steps}}


def _of_session(summary: Summary, rows: Sequence[history.Row]) -> Summary:
    """Return the summary of a session, with the sums of what its rounds kept."""
    kept: dict[int, Mapping[str, int]] = {
        row["step"]: row["kept"] for row in rows if row.get("event") == "step" and "kept" in row
    }
    counts = {"steps": summary["steps"]} if not kept else {"rounds": len(kept)}
    for metrics in kept.values():
        for name, number in metrics.items():
            counts[name] = counts.get(name, 0) + number
    return {
        "accuracy_before": summary["held_out_accuracy_before"],
        "accuracy_after": summary["held_out_accuracy_after"],
        "counts": counts,
    }


def _finish(run: run_directory.RunDirectory, model: Path, summaries: Sequence[Summary]) -> None:
    """RUN/model points at the model of the last stage; RUN/summary.json lists all of them."""
    write_summary(run.summary, {"stages": list(summaries)})
    link = run.path / "model"
    link.unlink(missing_ok=True)
    link.symlink_to(model.relative_to(run.path))


def _show(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else "–"
