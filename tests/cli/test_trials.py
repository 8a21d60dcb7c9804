"""`slipstream validate --try`: an agent program runs once, with fixed answers in the policy's place."""

import sys
from pathlib import Path
from typing import Any

import pytest
from slipstream.cli.__main__ import main
from slipstream.cli.checks.trial import check_trial
from slipstream.config import parse_config
from slipstream.config.problem import Problem

AGENT = """
import json, os, openai
client = openai.OpenAI()
question = json.loads(os.environ["SLIPSTREAM_PROMPT"])["text"]
for turn in range(2):
    answer = client.completions.create(model="any", prompt=question + "+" * turn).choices[0].text
    assert answer == "This is a trial.", answer
"""


def tried(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str, **more: Any) -> list[Problem]:
    (folder / "agent.py").write_text(source)
    monkeypatch.chdir(folder)
    command = [sys.executable, "{run_folder}/agent.py"]
    environment = {"kind": "program", "command": command, **more}
    tree = {"data": {"kind": "addition", "environment": environment}, "rewards": [{"name": "exact_match"}]}
    return list(check_trial(parse_config(tree)))


def test_a_program_that_asks_for_turns_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (note,) = tried(tmp_path, monkeypatch, AGENT)
    assert (note.severity, note.reason) == (
        "note",
        "in the trial the program had 2 turns, and ended with status 0",
    )


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import a_module_that_is_missing", "No module named 'a_module_that_is_missing'"),
        ("print('nothing to do')", "the program ended with the exit status 0 before a turn of the policy"),
        (
            "import openai\nopenai.OpenAI().chat.completions.create(model='any', messages=["
            "{'role': 'user', 'content': 'x'}])",
            "its last request was refused: the policy's tokenizer has no chat template",
        ),
    ],
)
def test_a_program_without_a_turn_is_an_error_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, words: str
) -> None:
    (problem,) = tried(tmp_path, monkeypatch, source)
    assert (problem.severity, problem.key) == ("error", "data.environment.command")
    assert words in problem.reason


def test_a_program_that_does_not_end_is_killed_and_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (note,) = tried(tmp_path, monkeypatch, "import time\ntime.sleep(1000)", seconds=1)
    assert note.severity == "note"
    assert note.reason == "the program did not end within 1 s of the trial, in which it had 0 turns"


def test_the_program_of_each_source_runs_on_the_first_prompt_of_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = "open(os.environ['SLIPSTREAM_RUN_FOLDER'] + '/asked', 'a').write(question + '\\n')"
    (tmp_path / "agent.py").write_text(f"{AGENT}\n{shown}")
    monkeypatch.chdir(tmp_path)
    program = {"kind": "program", "command": [sys.executable, "{run_folder}/agent.py"]}
    of = [
        {"kind": "addition"},
        {"kind": "sort_digits", "environment": program},
        {"kind": "addition", "digits": 1, "environment": {**program, "command": ["no-such-program"]}},
    ]
    config = parse_config({"data": {"kind": "mixture", "of": of}, "rewards": [{"name": "exact_match"}]})
    note, problem = check_trial(config)
    assert (note.key, note.severity) == ("data.of.1.environment.command", "note")
    assert "the program had 2 turns" in note.reason
    assert (problem.key, problem.severity) == ("data.of.2.environment.command", "error")
    assert (tmp_path / "asked").read_text().startswith("sort ")


def test_sources_that_share_a_program_try_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)
    program = {"kind": "program", "command": [sys.executable, "{run_folder}/agent.py"]}
    data = {"kind": "mixture", "environment": program, "of": [{"kind": "addition"}, {"kind": "sort_digits"}]}
    (note,) = check_trial(parse_config({"data": data, "rewards": [{"name": "exact_match"}]}))
    assert (note.key, note.severity) == ("data.environment.command", "note")


def test_a_run_without_programs_has_nothing_to_try() -> None:
    data = {"kind": "mixture", "of": [{"kind": "addition"}, {"kind": "sort_digits"}]}
    (note,) = check_trial(parse_config({"data": data}))
    assert note.reason == "is `single_turn`, and --try runs programs only"


def test_validate_runs_no_program_unless_it_is_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agent.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n{AGENT}")
    (tmp_path / "run.yaml").write_text(
        "data:\n  kind: addition\n"
        "  environment: {kind: program, command: ['{python}', '{run_folder}/agent.py']}\n"
        "rewards: [{name: exact_match}]\nrollout: {max_new_tokens: 16}\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["validate", "run.yaml"]) == 0
    assert not (tmp_path / "ran").exists()
    assert main(["validate", "run.yaml", "--try"]) == 0
    assert (tmp_path / "ran").exists()
    assert "in the trial the program had 2 turns, and ended with status 0" in capsys.readouterr().out
