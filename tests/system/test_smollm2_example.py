"""The example with a pretrained model: its questions are fair, and a few steps train what was sampled."""

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import torch
from slipstream.config import load_config
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "examples/counting_smollm2.yaml"
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


def test_every_answer_is_equally_common_and_no_question_is_asked_twice(tmp_path: Path) -> None:
    script("questions").main(tmp_path)
    training, held_out = (
        [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("training", "held-out")
    )
    rows = [*training, *held_out]
    for row in rows:
        words = row["messages"][-1]["content"].rstrip("?").split()
        assert int(row["answer"]) - int(words[-1]) == {"before": -1, "after": 1}[words[-2]]
    questions = [row["messages"][-1]["content"] for row in rows]
    assert len(set(questions)) == len(questions) == 2 * 898
    assert max(Counter(row["answer"] for row in rows).values()) == 2
    hidden = {row["messages"][-1]["content"] for row in held_out}
    for row in rows:
        (first, said), (second, also) = (row["messages"][:2], row["messages"][2:4])
        assert (
            not {first["content"], second["content"]} & hidden
        )  # no held-out question is shown with its answer
        assert row["answer"] not in (said["content"], also["content"])
        assert ("before" in first["content"]) != ("before" in second["content"])


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
