"""The console beside a real run: it is paused and resumed by a click, saved, and outlives the console."""

import os
import re
import signal
from pathlib import Path

import pytest
from browser.pages import Console
from system.driver import Run, running

pytestmark = pytest.mark.browser
EMULATED = ("rollout.engine=emulated", "rollout.emulated.median_seconds=0.05")
RARELY = "learner.checkpoint.every_steps=1000"
START_SECONDS = 400


def address_of(run: Run) -> str:
    """Return the address of the console that the run has started."""
    started = "console http://"
    run.wait_until("the console", lambda: started in run.output.read_text(), seconds=START_SECONDS)
    return "http://" + run.output.read_text().partition(started)[2].split()[0]


def act(console: Console, name: str) -> None:
    console.page.click(f"[data-act={name}]")
    console.page.click("dialog [data-act=confirm]")


def test_a_visitor_pauses_resumes_and_saves_a_run(console: Console, tmp_path: Path) -> None:
    with running(tmp_path, *EMULATED, RARELY, steps=100_000) as run:
        console.address = address_of(run)
        run.wait_until("third step", lambda: run.version() >= 3, seconds=START_SECONDS)
        console.open("run")
        console.page.click("[data-act=pause]")
        console.page.click("dialog >> text=Cancel")
        before = run.version()
        run.wait_until("a step in spite of the dialog", lambda: run.version() > before)
        act(console, "pause")
        console.becomes("[role=status]", "Paused: no new prompts are leased.")
        run.wait_until("the learner's word on the pause", lambda: "paused by the console" in run.said())
        stopped = run.version()
        console.becomes("[data-fact=step]", f"{stopped:,} of 100,000")
        assert "admission is paused" in console.words("[aria-label='The circle'] p")
        act(console, "checkpoint")
        run.wait_until("the checkpoint", (run.run_dir / f"checkpoints/step_{stopped:08d}/state.json").exists)
        assert run.version() == stopped
        act(console, "resume")
        run.wait_until("two steps more", lambda: run.version() >= stopped + 2)
        workers = console.words("[aria-label=Workers]")
        assert re.search(r"rollout-0\b.*\s[\d,.]+ tokens/s", workers), workers
        assert re.search(r"actor-0\b.*\s[\d,.]+ completions/s", workers), workers
        console.page.goto("about:blank")  # a page that asks a console which has ended reports an error
        run.interrupt()
        assert run.finish(seconds=60) == 0, run.said()
    assert run.summary()["ledger_residual"] == 0
    assert run.summary()["orphans"] == 0


def test_a_run_whose_console_is_killed_trains_to_its_end(tmp_path: Path) -> None:
    with running(tmp_path, *EMULATED, steps=12) as run:
        address_of(run)
        run.wait_until("second step", lambda: run.version() >= 2, seconds=START_SECONDS)
        os.kill(run.pod("console")["pid"], signal.SIGKILL)
        assert run.finish() == 0, run.said()
    assert run.summary()["steps"] == 12
    assert (run.summary()["ledger_residual"], run.summary()["orphans"]) == (0, 0)
