"""docs/tutorial.md: its files are valid, and its commands work one after the other."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from docs.commands import commands_of, joined
from docs.shell_blocks import blocks
from slipstream.cli.__main__ import main
from slipstream.config import TinyModel
from slipstream.learner.policy.tiny import make_tiny_model
from slipstream.records import Prompt
from verifier.scoring import answer

ROOT = Path(__file__).resolve().parents[2]
PATH = ROOT / "docs/tutorial.md"
PAGE = PATH.read_text(encoding="utf-8")
MODELS = ("first-model", "reversed")
SECONDS = 1500
FEWER_STEPS = {"learner: {steps: 100,": "learner: {steps: 3,", "learner: {steps: 20,": "learner: {steps: 2,"}
STEP = ("--step 100", "--step 3")


def files() -> dict[str, str]:
    """Return the files of the page: the paragraph above a block ends with the name of the file."""
    parts = re.split(r"^```(?:yaml|python)\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    texts = {}
    for before, block in zip(parts[::2], parts[1::2], strict=False):
        paragraph = before.strip().split("\n\n")[-1]
        texts[re.findall(r"`(\w+\.(?:py|yaml))`", paragraph)[-1]] = block
    return texts


def write_files(folder: Path) -> None:
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")


def test_the_page_has_its_six_files() -> None:
    assert list(files()) == [
        *("rows.py", "first.yaml", "my_rewards.py", "reverse.yaml", "my_environments.py", "second.yaml"),
    ]


def test_the_files_of_the_page_are_valid_after_its_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    rows = subprocess.run([sys.executable, "rows.py"], capture_output=True, text=True, check=True).stdout
    (tmp_path / "rows.jsonl").write_text(rows, encoding="utf-8")
    (shown,) = blocks(PAGE, "json")
    assert rows.startswith(shown)
    for name in MODELS:
        make_tiny_model(TinyModel(layers=1, width=32, heads=1, max_tokens=64), tmp_path / name, seed=0)
    validations = [
        command for command in commands_of(PATH) if command.words[:2] == ["slipstream", "validate"]
    ]
    assert [command.words[2] for command in validations] == ["reverse.yaml", "second.yaml"]
    for command in validations:
        assert main(command.words[1:]) == 0, capsys.readouterr().err
    assert "`places` says 1 of the right answer" in capsys.readouterr().out


def test_the_reward_of_the_page_is_the_share_of_the_right_places() -> None:
    names: dict[str, Any] = {}
    exec(files()["my_rewards.py"], names)
    prompt = Prompt(prompt_id="p", task="t", text="reverse 4821:", answer="1284")
    assert [names["places"](prompt, answer(text)) for text in ("1284", "1294", "12840")] == [1.0, 0.75, 0.8]


@pytest.mark.long
def test_the_tutorial_can_be_followed_from_top_to_bottom(tmp_path: Path) -> None:
    write_files(tmp_path)
    for name in ("first.yaml", "reverse.yaml", "second.yaml"):
        path = tmp_path / name
        text = path.read_text(encoding="utf-8")
        for steps, fewer in FEWER_STEPS.items():
            text = text.replace(steps, fewer)
        path.write_text(text, encoding="utf-8")
    scripts = [block for block in blocks(PAGE, "") if "export PATH" not in block]
    script = "\n".join(line for block in scripts for line in joined(block)).replace(*STEP)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "cold start: done, accuracy" in done.stdout
    assert (tmp_path / "reversed/model.safetensors").exists()
    assert done.stdout.count("ledger residual 0") == 2
