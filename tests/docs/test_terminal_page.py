"""docs/terminal.md: its outputs are those of its commands for a real run, and its tables are complete."""

import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from docs.commands import commands_of
from docs.markdown import broken_links, code, table
from docs.shell_blocks import blocks, prompted, run_shell
from rich.console import Console
from slipstream.cli.__main__ import _parser, main
from slipstream.cli.launch.alarms import CHECKS
from slipstream.cli.launch.history import History, read_history
from slipstream.cli.launch.last_sample import read_last_sample
from slipstream.cli.launch.panel import View, panel
from slipstream.cli.launch.run_directory import RunDirectory
from slipstream.config import RunConfig, load_config
from slipstream.records import Ledger, ReplayStats

ROOT = Path(__file__).resolve().parents[2]
PATH = ROOT / "docs/terminal.md"
PAGE = PATH.read_text(encoding="utf-8")
RUN = Path(__file__).with_name("terminal_run")
"""Rows (without the keys that no command shows), newest sample and ledger of the run of the page."""
NAMES = ("addition-20261126-180539", "addition-20261126-174538")
SETTINGS = ("learner.steps=40", "evaluation.every_steps=10")
WIDTH, HEIGHT = 80, 24


def config() -> RunConfig:
    return load_config(ROOT / "examples/addition.yaml", SETTINGS)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the runs of the page, in a terminal of 80 columns."""
    for name in NAMES:
        run = RunDirectory(tmp_path / "runs" / name)
        run.make_folders()
        run.write_config(config(), source=config())
        for file in ("metrics.jsonl", "summary.json"):
            shutil.copy(RUN / file, run.path / file)
    (tmp_path / "runs/latest").symlink_to(NAMES[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    return tmp_path


def outputs() -> dict[str, str]:
    """Return each command that the page shows with its output."""
    shown = [block.partition("\n") for block in blocks(PAGE, "") if block.startswith("$ ")]
    return {command.removeprefix("$ "): output for command, _, output in shown}


def until(step: int) -> History:
    """Return the rows of the run up to a step."""
    history = read_history(RUN / "metrics.jsonl")
    for rows in (history.steps, history.evaluations):
        for later in [number for number in rows if number > step]:
            del rows[later]
    return history


def drawn(view: View) -> str:
    """Return the panel as text."""
    output = io.StringIO()
    Console(file=output, width=WIDTH, height=HEIGHT).print(panel(view, width=WIDTH, height=HEIGHT))
    return output.getvalue()


def test_the_panel_is_that_of_the_run() -> None:
    (shown,) = [output for command, output in outputs().items() if command.startswith("slipstream run")]
    state = json.loads((RUN / "replay.json").read_text())
    history = until(state["step"])
    history.filtered_share = state["filtered_share"]
    history.replay = ReplayStats(
        ledger=Ledger(**state["ledger"]),
        version=state["version"],
        admission_free=state["admission_free"],
        kept=state["kept"],
    )
    view = View(title=config().name, steps=40, groups_per_step=64, history=history)
    view = replace(view, sample=read_last_sample(RUN / "samples.jsonl"))
    assert shown == drawn(view)


def test_every_output_is_that_of_its_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = {command: output for command, output in outputs().items() if " run " not in command}
    assert {command.split()[1] for command in commands} == {"status", "ledger", "plot"}
    for command, output in commands.items():
        words = command.split("#")[0].split()[1:]
        assert main(words) == 0, command
        assert capsys.readouterr().out == output, command


def test_every_command_that_reads_a_run_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = [command for command in commands_of(PATH) if command.words[1] != "run"]
    assert {command.words[1] for command in commands} == {"status", "ledger", "plot"}
    for command in commands:
        assert main(command.words[1:]) == 0, command.text
        assert capsys.readouterr().out, command.text


def test_the_command_line_accepts_every_command(tmp_path: Path) -> None:
    scripts = [prompted(block) for block in blocks(PAGE, "")]
    calls = [
        call for number, script in enumerate(scripts) for call in run_shell(script, tmp_path / str(number))
    ]
    assert {call.words[0] for call in calls} == {"run", "status", "ledger", "plot"}
    for call in calls:
        assert _parser().parse_args(list(call.words)), call.words


def test_the_table_of_alarms_has_every_alarm() -> None:
    rows = table(PAGE, first="alarm")
    assert [name for row in rows for name in code(row[0])] == [check.__name__.strip("_") for check in CHECKS]


def test_the_table_of_the_panel_has_every_line_of_it() -> None:
    (shown,) = [output for command, output in outputs().items() if command.startswith("slipstream run")]
    labels = re.findall(r"^│ ([a-z/-]+) {2,}\S", shown, re.MULTILINE)
    listed = [label for row in table(PAGE, first="line") for label in code(row[0])]
    assert len(labels) == 11
    assert [label for label in labels if label not in listed] == []


def test_every_link_of_the_page_is_valid() -> None:
    assert broken_links(PATH) == []
