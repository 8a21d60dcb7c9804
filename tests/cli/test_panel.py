"""The live panel: its numbers, its size, hostile samples, and its failures."""

import fcntl
import io
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli.runs import NO_NUMBERS, START, a_config, a_step, an_evaluation, make_run, with_every_number_as
from cli.test_run import Launcher, launcher
from rich.cells import cell_len
from rich.console import Console
from slipstream.cli.launch.alarms import Alarm, find_alarms
from slipstream.cli.launch.columns import step_line
from slipstream.cli.launch.display import (
    BEGIN_UPDATE,
    END_UPDATE,
    FallbackDisplay,
    LiveDisplay,
    PlainDisplay,
    open_display,
)
from slipstream.cli.launch.history import History
from slipstream.cli.launch.last_sample import few_lines, read_last_sample
from slipstream.cli.launch.panel import View, panel
from slipstream.records import Ledger, ReplayStats

__all__ = ["launcher"]
HOSTILE = "[bold]x[/bold] \x1b[31mred\x1b[0m \u202egnp.exe \r\x07\x9b2J 漢字"
ALARM = Alarm(
    name="idle", severity="warning", words="the learner waits for groups 75% of its time", action=""
)


def a_view(steps: int = 30, **values: Any) -> View:
    history = History()
    history.add(an_evaluation(0, 0.25))
    for step in range(1, steps + 1):
        history.add(a_step(step, **values))
    history.add(an_evaluation(steps, 0.75))
    history.filtered_share = 0.875
    ledger = Ledger(leased=200, inserted=160, running=40, trained=30, buffered=120, in_flight=10)
    history.replay = ReplayStats(ledger=ledger, version=steps, admission_free=0, kept=0)
    sample = {"step": steps, "prompt": "What is 6*7?", "text": "It is 42.", "rewards": {"exact_match": 1.0}}
    return View(title="job", steps=40, groups_per_step=4, history=history, sample=sample, alarms=[ALARM])


def drawn(view: View, *, width: int = 80, height: int = 24) -> list[str]:
    """Return the lines of the panel."""
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    console.print(panel(view, width=width, height=height))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def line(lines: Sequence[str], label: str) -> str:
    (text,) = [text for text in lines if text.startswith(f"│ {label} ")]
    return " ".join(text.strip("│").split())


def test_the_panel_has_every_number() -> None:
    lines = drawn(a_view())
    assert "step 30/40 · 1m 40s left" in lines[1]
    assert line(lines, "reward").startswith("reward 0.260 ▁")
    assert line(lines, "reward").endswith("█ 0.550")
    assert line(lines, "held-out").startswith("held-out 0.250 ▁")
    assert line(lines, "held-out").endswith("▁██ 0.750")
    assert line(lines, "staleness") == "staleness mean 1.50 max 3 0 ▂ 1 █ 2 ▂ 3-4 ▁"
    assert "clipped low 0.10% high 2.00% peak 2.10% " in line(lines, "clipped")
    assert line(lines, "tokens/s").startswith("tokens/s 5,001 ")
    assert line(lines, "tokens/s").endswith(" 5,030")
    assert "learner waits 10%, trains 80%, publishes 10% ░░" in line(lines, "learner")
    assert line(lines, "actors") == "actors 40 groups in work, 120 ready actors wait for the next step"
    assert line(lines, "rollouts") == "rollouts 2 version 30 filtered 88% truncated 12%"
    assert line(lines, "warning") == "warning the learner waits for groups 75% of its time"
    assert line(lines, "sample") == "sample step 30 exact_match 1"
    assert line(lines, "prompt") == "prompt What is 6*7?"
    assert line(lines, "answer") == "answer It is 42."


@pytest.mark.parametrize(
    ("ready", "in_flight", "free", "words"),
    [
        (3, 0, 5, "the learner waits for groups"),
        (3, 1, 5, "nobody waits"),
        (4, 0, 0, "actors wait for the next step"),
    ],
)
def test_the_groups_of_replay_say_who_waits(ready: int, in_flight: int, free: int, words: str) -> None:
    view = a_view()
    ledger = Ledger(buffered=ready, in_flight=in_flight)
    view.history.replay = ReplayStats(ledger=ledger, version=30, admission_free=free, kept=0)
    assert line(drawn(view), "actors").endswith(f"ready {words}")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 16), (40, 12), (20, 9), (200, 60)])
def test_the_panel_fits_into_the_terminal_with_space_for_messages(width: int, height: int) -> None:
    long = "word " * 2000
    view = replace(a_view(), sample={"step": 30, "prompt": long, "text": long, "rewards": {"a": 1.0}})
    lines = drawn(view, width=width, height=height)
    assert {cell_len(text) for text in lines} == {min(width, 120)}
    assert len(lines) <= height - 4


def test_at_80_columns_no_number_is_cut() -> None:
    large = {"tokens_per_second": 123456.0, "staleness_mean": 12.34, "staleness_max": 115, "workers": 128}
    clips = {"clip_fraction_low": 0.1234, "clip_fraction_high": 0.2345, "truncated_fraction": 1.0}
    ages = {"staleness_histogram": {"0": 1, "1": 2, "2": 3, "3-4": 4, "5-8": 5, ">8": 60}}
    view = replace(a_view(**large, **clips, **ages, over_age_fraction=0.5), steps=120_000)
    view.history.filtered_share = 1.0
    lines = drawn(view)
    assert not [text for text in lines if "…" in text]
    assert line(lines, "staleness").endswith(">8 █")
    assert line(lines, "rollouts").endswith("over age 50%")


def test_a_tall_terminal_has_higher_curves_and_the_sample() -> None:
    low, high = drawn(a_view(), height=24), drawn(a_view(), height=40)
    assert len(high) == len(low) + 4


def test_a_low_terminal_keeps_the_most_important_lines() -> None:
    lines = drawn(a_view(), height=12)
    assert [text.split()[1] for text in lines[3:-1]] == ["reward", "held-out", "staleness", "clipped"]


def test_rows_of_a_stage_without_rewards_have_no_empty_curves() -> None:
    history = History()
    for number in (1, 2):
        history.add({"event": "step", "step": number, "version": number, "kept": {"completions": 64}})
    lines = drawn(View(title="job", steps=3, groups_per_step=4, history=history))
    assert [text for text in lines if "reward" in text or "tokens/s" in text] == []
    assert line(lines, "rollouts") == "rollouts – version 2"


@pytest.mark.parametrize("number", NO_NUMBERS)
def test_numbers_that_are_not_finite_are_left_out(number: str) -> None:
    history = History()
    for step in range(1, 9):
        history.add(with_every_number_as(number, a_step(step)))
    alarms = find_alarms(history, config=a_config(), now=START)
    drawn(View(title="job", steps=8, groups_per_step=4, history=history, alarms=alarms))
    assert "reward –" in step_line(history.last_step, history, steps=8)


def test_a_long_step_shows_its_time_and_takes_it_off_the_time_left() -> None:
    lines = drawn(replace(a_view(), seconds_since_step=65.0))
    assert "step 30/40 · 35s left · this step 1m 05s" in lines[1]


def test_a_hostile_sample_steers_no_terminal() -> None:
    sample = {"step": HOSTILE, "prompt": HOSTILE, "text": HOSTILE, "rewards": {HOSTILE: HOSTILE}}
    lines = drawn(replace(a_view(), title=HOSTILE, sample=sample), width=120)
    assert all(text.isprintable() for text in lines)
    assert {cell_len(text) for text in lines} == {120}
    assert "[bold]x[/bold] \\x1b[31mred" in line(lines, "answer")
    assert "\\u202e" in line(lines, "prompt")


def test_a_conversation_shows_its_last_message() -> None:
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 1+1?"}]
    lines = drawn(replace(a_view(), sample={"step": 1, "prompt": prompt, "text": "2"}))
    assert line(lines, "prompt") == "prompt What is 1+1?"


@pytest.mark.parametrize(
    "sample", [{}, {"prompt": None, "rewards": [1], "text": 5}, {"prompt": [1]}, {"prompt": []}]
)
def test_a_sample_of_another_form_is_shown_as_far_as_it_goes(sample: dict[str, Any]) -> None:
    assert line(drawn(replace(a_view(), sample=sample)), "sample").startswith("sample step –")


def test_of_a_long_text_the_beginning_and_the_last_line_are_shown() -> None:
    text = "\n".join(f"line {number}" for number in range(50))
    assert few_lines(text, width=20, count=3) == ["line 0", "line 1", "… line 49"]
    assert few_lines("漢" * 30, width=21, count=2) == ["漢" * 10, f"… {'漢' * 9}"]


def test_the_last_complete_line_of_the_samples_is_read(tmp_path: Path) -> None:
    file = tmp_path / "samples.jsonl"
    assert read_last_sample(file) is None
    long = {"step": 2, "text": "x" * 200_000}
    file.write_text(f'{{"step": 1}}\n{json.dumps(long)}\n{{"step": 3, "te')
    assert read_last_sample(file) == long
    file.write_text('{"step": 1}\n')
    assert read_last_sample(file) == {"step": 1}
    file.write_text("[1]\n")
    assert read_last_sample(file) is None


def live(console: Console) -> LiveDisplay:
    return LiveDisplay(a_config(), console)


def a_console(**options: Any) -> Console:
    return Console(file=io.StringIO(), width=80, height=24, force_terminal=True, color_system=None, **options)


def test_lines_go_above_the_panel_and_the_last_panel_stays(tmp_path: Path) -> None:
    console, history = a_console(), a_view().history
    display = live(console)
    run = make_run(tmp_path, [])
    run.samples.write_text('{"step": 30, "prompt": "6*7=", "text": "42"}\n')
    display.follow(run)
    display.waiting("learner", 1)
    display.say("replay is ready at [::1]:5")
    display.rows([a_step(30)], history)
    display.close()
    assert isinstance(console.file, io.StringIO)
    output = console.file.getvalue()
    assert "replay is ready at [::1]:5" in output
    last_panel = output[output.rindex("╭") :]
    assert "step 30/40" in last_panel
    assert "6*7=" in last_panel


def test_each_change_is_one_synchronized_update() -> None:
    console = a_console()
    display = live(console)
    assert isinstance(console.file, io.StringIO)
    console.file.truncate(0)
    display.say("a line")
    display.rows([a_step(30)], a_view().history)
    updates = console.file.getvalue().split(BEGIN_UPDATE)[1:]
    assert len(updates) == 2
    assert all(update.count(END_UPDATE) == 1 and update.endswith(END_UPDATE) for update in updates)
    display.close()


def test_between_two_clock_seconds_nothing_is_written() -> None:
    clock, console = [100.0], a_console()
    display = LiveDisplay(a_config(), console, clock=lambda: clock[0])
    display.rows([a_step(30)], a_view().history)
    written = []
    for _ in range(12):
        clock[0] += 0.25
        display.tick()
        assert isinstance(console.file, io.StringIO)
        written.append(console.file.tell())
    assert len(set(written)) == 4
    display.close()


def test_an_evaluation_does_not_restart_the_time_of_the_step() -> None:
    clock, console, history = [100.0], a_console(), a_view().history
    display = LiveDisplay(a_config(), console, clock=lambda: clock[0])
    display.rows([a_step(30)], history)
    clock[0] += 40.0
    display.rows([an_evaluation(30, 0.5)], history)
    display.close()
    assert isinstance(console.file, io.StringIO)
    assert "1m 00s left · this step 40s" in console.file.getvalue()


def test_a_run_that_falls_silent_shows_that() -> None:
    console, history, now = a_console(), History(), time.time()
    for step in range(1, 31):
        history.add(a_step(step, time=now - 1200 + 20 * step))
    display = live(console)
    display.rows([], history)
    display.close()
    assert isinstance(console.file, io.StringIO)
    assert "error      no step for 10m 00s; one takes 20s" in console.file.getvalue()


class FailsLater(PlainDisplay):
    """A display whose panel fails."""

    def rows(self, new: Sequence[Any], history: History) -> None:
        """Fail."""
        raise ZeroDivisionError("no width")


def test_after_a_failure_of_the_panel_plain_lines_follow() -> None:
    panels, lines = io.StringIO(), io.StringIO()
    display = FallbackDisplay(FailsLater(5, panels), PlainDisplay(5, lines))
    display.say("before")
    display.rows([a_step(3)], a_view(3).history)
    display.tick()
    display.rows([a_step(4)], a_view(4).history)
    display.close()
    assert panels.getvalue() == "before\n"
    failure, *steps = lines.getvalue().splitlines()
    assert failure == "the panel failed (ZeroDivisionError: no width); plain lines follow"
    assert [text.split("  ")[0] for text in steps] == ["step 3/5", "step 4/5"]


@pytest.mark.parametrize(("plain", "terminal"), [(True, True), (False, False)])
def test_a_pipe_and_plain_have_lines(plain: bool, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    assert isinstance(open_display(a_config(), plain=plain), PlainDisplay)


def start_on_terminal(launcher: Launcher, *arguments: str, **environment: str) -> tuple[int, Any]:
    """Start a run with fake pods on a pseudo-terminal of 80x24; return the terminal and the process."""
    terminal, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    path = Path(__file__).with_name("launch.py")
    process = subprocess.Popen(
        [sys.executable, str(path), str(launcher.config), "--live", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=child,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "TERM": "xterm-256color",
            "PYTHONPATH": str(Path(__file__).parents[2] / "services"),
            "FAKE_MARKS": str(launcher.folder),
            **environment,
        },
    )
    launcher.started = process
    os.close(child)
    return terminal, process


def read_until(terminal: int, text: str, *, seconds: float = 40.0) -> str:
    """Read the terminal until a text is shown, or its end."""
    end, shown = time.monotonic() + seconds, b""
    while text.encode() not in shown:
        ready, _, _ = select.select([terminal], [], [], max(0.0, end - time.monotonic()))
        assert ready, f"no {text!r}: {shown.decode(errors='replace')[-2000:]}"
        try:
            shown += os.read(terminal, 65536)
        except OSError:
            break
    return shown.decode(errors="replace")


def test_a_run_on_a_terminal_shows_the_panel_and_leaves_the_cursor_visible(launcher: Launcher) -> None:
    terminal, process = start_on_terminal(launcher, FAKE_STEP_SECONDS="0.3")
    shown = read_until(terminal, "processes left over 0")
    shown += read_until(terminal, "\x00", seconds=20)
    os.close(terminal)
    assert process.wait(timeout=20) == 0
    assert process.stderr.read() == ""
    last = re.sub(r"\x1b\[[\d;]*m", "", shown[shown.rindex("╭") :])
    assert "step 5/5" in last
    assert "reward     0.260" in last
    assert "the panel failed" not in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert shown.count(BEGIN_UPDATE) == shown.count(END_UPDATE) > 5


def test_a_terminal_that_goes_away_does_not_stop_the_run(launcher: Launcher) -> None:
    terminal, process = start_on_terminal(launcher, FAKE_STEP_SECONDS="0.3")
    read_until(terminal, "/5")
    os.close(terminal)
    assert process.wait(timeout=40) == 0, process.stderr.read()
    assert launcher.summary["steps"] == 5
    assert launcher.summary["interrupted"] is False
