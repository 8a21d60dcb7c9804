"""Three steps of a run with a tiny model of each family in docs/models.md, on the real engine."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from learner.families import CONTEXT, FAMILIES, make_model
from safetensors.torch import load_file
from slipstream.config import TinyModel, load_config
from slipstream.learner.policy.tiny import make_tiny_model
from system.driver import Run, running
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = [pytest.mark.vllm, pytest.mark.long]
CLOSE = 1e-4
STEPS = 3
SETTINGS = (
    "staleness={pipeline_depth: 0, max_staleness: 0}",
    "rewards=[{name: format, pattern: '(?s).*[0-4].*'}]",  # half of random answers match
    "learner.learning_rate=0.01",
    "learner.samples_per_step=8",
    "evaluation={every_steps: 5, prompts: 2, samples_per_prompt: 1, reward: format}",
)


def largest_difference(model: Any, tokenizer: Any, samples: list[dict[str, Any]]) -> float:
    """Return the largest difference between the logprobs of the engine and those of transformers."""
    largest = 0.0
    for sample in samples:
        prompt = tokenizer(sample["prompt"])["input_ids"]
        answer = torch.tensor([token["id"] for token in sample["tokens"]])
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
        own = logits.log_softmax(-1).gather(1, answer[:, None]).squeeze(1)
        engine = torch.tensor([token["logprob"] for token in sample["tokens"]])
        largest = max(largest, float((own - engine).abs().max()))
    return largest


def samples_of(run: Run, step: int) -> list[dict[str, Any]]:
    lines = (run.run_dir / "samples.jsonl").read_text().splitlines()
    return [sample for sample in map(json.loads, lines) if sample["step"] == step]


def changed_tensors(before: Path, after: Path) -> int:
    old, new = (load_file(directory / "model.safetensors") for directory in (before, after))
    assert old.keys() == new.keys()
    return sum(not torch.equal(old[name], new[name]) for name in old)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_of_three_steps_trains_what_the_engine_sampled(tmp_path: Path, family: str) -> None:
    directory = make_model(family, tmp_path / "model")
    settings = (*SETTINGS, f"model={{path: {directory}}}")
    with running(tmp_path, *settings, steps=STEPS) as run:
        assert run.finish(seconds=400) == 0, run.said()
    assert run.summary()["ledger_residual"] == 0
    rows = run.rows("step")
    assert [row["staleness_max"] for row in rows] == [0] * STEPS
    # the learner's logprobs against the engine's, with the initial weights and after each update
    mismatch = [(row["mean_log_ratio_sq"] ** 0.5, abs(row["max_ratio"] - 1)) for row in rows]
    print(f"{family}: root mean square and largest log ratio of each step {mismatch}")
    assert max(max(pair) for pair in mismatch) <= CLOSE
    assert changed_tensors(directory, run.run_dir / "model") > 0
    model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    first = samples_of(run, 1)
    assert sum(len(sample["tokens"]) for sample in first) > CONTEXT
    assert largest_difference(model, tokenizer, first) <= CLOSE


def test_a_model_of_32k_positions_starts_with_the_default_cache_of_a_cpu(tmp_path: Path) -> None:
    """A sequence of the full context would take 0.31 GiB, and rollout.kv_cache_gib is 0.25."""
    tiny = TinyModel(layers=10, max_tokens=32768)
    make_tiny_model(tiny, tmp_path / "model", seed=0)
    with running(tmp_path, *SETTINGS, f"model={{path: {tmp_path / 'model'}}}", steps=1) as run:
        assert run.finish(seconds=400) == 0, run.said()
    config = load_config([run.run_dir / "config.yaml"])
    assert config.rollout.kv_cache_gib == 0.25
    assert config.rollout.context_tokens == 32  # twice the 4 tokens of `1+2=`, and 24 sampled ones
