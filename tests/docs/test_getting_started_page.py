"""docs/getting-started.md: the example of a run is valid, and one answer can earn all of its rewards."""

import asyncio
import json
import re
import subprocess
from pathlib import Path

import pytest
from cli.test_validate import make_model
from slipstream.cli.__main__ import main
from slipstream.config import load_config
from slipstream.records import Prompt
from verifier.scoring import Bench, answer

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/getting-started.md").read_text(encoding="utf-8")


def example() -> str:
    """Return the only YAML block of the page."""
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    return str(block)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Return the example with an existing model and existing rows."""
    (tmp_path / "models").mkdir()
    model = make_model(
        tmp_path / "models" / "Qwen2.5-0.5B-Instruct", max_position_embeddings=32768, vocab_size=151936
    )
    rows = tmp_path / "train.jsonl"
    questions = [{"prompt": f"w1 w2 {i}", "answer": str(i)} for i in range(400)]
    rows.write_text("".join(json.dumps(row) + "\n" for row in questions))
    file = tmp_path / "my.yaml"
    text = example().replace("/models/Qwen2.5-0.5B-Instruct", str(model)).replace("train.jsonl", str(rows))
    assert str(model) in text
    file.write_text(text)
    return file


def test_the_example_is_valid_without_a_warning_about_its_rewards(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", str(job)]) == 0
    assert "note: rewards" not in capsys.readouterr().out


def test_a_right_answer_in_the_requested_form_earns_every_reward_of_the_example(
    job: Path,
) -> None:
    config = load_config(job)
    prompt = Prompt(prompt_id="p", task="t", text="6*7?", answer="42")
    right, bare, wrong = (
        answer(text) for text in ("It is\n<answer>42</answer>", "42", "<answer>41</answer>")
    )

    async def values() -> list[list[float]]:
        async with Bench(config.rewards) as bench:
            vectors = await bench.scorer.score(prompt, [right, bare, wrong])
        return [[component.value for component in vector] for vector in vectors]

    assert asyncio.run(values()) == [[1.0, 1.0], [0.0, 0.0], [0.0, 1.0]]


def test_make_setup_only_installs() -> None:
    steps = subprocess.run(
        ["make", "--dry-run", "--always-make", "setup"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "docker/setup.sh" in steps
    assert "slipstream" not in steps
    assert "pytest" not in steps
