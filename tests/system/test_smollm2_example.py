"""The example with a pretrained model: its questions are fair, and a few steps train what was sampled."""

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from slipstream.config import load_config
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "examples/largest_smollm2.yaml"
MODEL = ROOT / "build/smollm2/model"
STEPS = 2


def script(name: str) -> ModuleType:
    """A program of the example, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"examples/smollm2/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def numbers_of(row: dict[str, Any]) -> list[int]:
    text: str = row["messages"][-1]["content"]
    return [int(number) for number in text.partition(":")[2].rstrip("?").split(",")]


def test_no_answer_is_commoner_than_another_and_none_can_be_read_off_its_place(tmp_path: Path) -> None:
    script("questions").main(tmp_path)
    training, held_out = (
        [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("training", "held-out")
    )
    for row in [*training, *held_out]:
        assert row["answer"] == str(max(numbers_of(row)))
    assert not {frozenset(numbers_of(row)) for row in training} & {
        frozenset(numbers_of(row)) for row in held_out
    }
    assert max(Counter(row["answer"] for row in training).values()) < 0.025 * len(training)
    places = Counter(numbers_of(row).index(int(row["answer"])) for row in training)
    assert all(0.3 < places[place] / len(training) < 0.37 for place in range(3))


def test_the_example_is_a_configuration_whose_files_its_programs_make() -> None:
    config = load_config([CONFIG])
    assert str(config.model.path) == "build/smollm2/model"
    data = config.data
    assert data.kind == "file"
    assert [str(data.path), str(data.held_out_path)] == [
        "build/smollm2/training.jsonl",
        "build/smollm2/held-out.jsonl",
    ]


@pytest.mark.vllm
@pytest.mark.long
def test_a_few_steps_of_the_example_train_what_the_pretrained_model_sampled(tmp_path: Path) -> None:
    if not (MODEL / "config.json").is_file():
        pytest.skip("make example-smollm2 and make test-long make the model")
    settings = (
        f"learner.steps={STEPS}",
        f"runs_dir={tmp_path}",
        "staleness={pipeline_depth: 0, max_staleness: 0}",
        "algorithm.preset=grpo",
        "rollout.group_size=4",
        "learner.samples_per_step=8",
        "evaluation.prompts=16",
    )
    sets = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "slipstream.cli", "run", str(CONFIG), "--plain", *sets]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    run = tmp_path / "latest"
    assert json.loads((run / "summary.json").read_text())["ledger_residual"] == 0
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["event"] == "step"]
    assert len(steps) == STEPS
    assert max(row["mean_log_ratio_sq"] for row in steps) < 1e-8  # float32, before and after an update
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    for sample in [sample for sample in samples if sample["step"] == 1]:
        prompt = tokenizer.apply_chat_template(
            sample["prompt"], add_generation_prompt=True, tokenize=True, return_dict=True
        )["input_ids"]
        answer = torch.tensor([token["id"] for token in sample["tokens"]])
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
        own = logits.log_softmax(-1).gather(1, answer[:, None]).squeeze(1)
        engine = torch.tensor([token["logprob"] for token in sample["tokens"]])
        torch.testing.assert_close(own, engine, atol=1e-3, rtol=0)
