"""The example with a pretrained model: its questions are balanced, and a few steps train on samples."""

import importlib.util
import json
import signal
import subprocess
import sys
import time
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
STEPS = 3


def script(name: str) -> ModuleType:
    """Import a program of the example as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"examples/smollm2/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_answer_is_equally_common_and_every_question_occurs_once(tmp_path: Path) -> None:
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
        (first, first_answer), (second, second_answer) = (row["messages"][:2], row["messages"][2:4])
        assert (
            not {first["content"], second["content"]} & hidden
        )  # no prompt shows the answer of a held-out question
        assert row["answer"] not in (first_answer["content"], second_answer["content"])
        assert ("before" in first["content"]) != ("before" in second["content"])


def test_the_programs_of_the_example_make_the_files_that_its_configuration_names() -> None:
    config = load_config([CONFIG])
    assert str(config.model.path) == "build/smollm2/model"
    data = config.data
    assert data.kind == "file"
    assert [str(data.path), str(data.held_out_path)] == [
        "build/smollm2/training.jsonl",
        "build/smollm2/held-out.jsonl",
    ]


def test_the_table_has_the_numbers_that_the_evaluation_prints(capsys: pytest.CaptureFixture[str]) -> None:
    truths = ["1", "2", "3", "4"]
    report = script("evaluate").report
    smollm2 = importlib.import_module("benchmarks.smollm2")
    before = smollm2.Evaluation.read(report({"sampled": ["1", "7", "7,", "7"], "greedy": truths}, truths))
    after = smollm2.Evaluation.read(report({"sampled": ["1", "2", "3 0.9", "4"], "greedy": truths}, truths))
    assert (before.accuracy, before.commonest, before.questions) == (0.25, 0.5, 4)
    assert (after.accuracy, after.commonest, after.questions) == (0.75, 0.25, 4)
    summary = {"held_out_accuracy_before": 0.2, "held_out_accuracy_after": 0.5, "steps": 40}
    summary |= {"loop_seconds": 698.72, "ledger_residual": 0}
    smollm2.print_table(before, after, summary, config=load_config([CONFIG]))
    printed = capsys.readouterr().out
    assert "| accuracy | 0.250 | 0.750 |" in printed
    assert "| share of the commonest answer | 0.500 | 0.250 |" in printed
    assert "698.7 s for\n40 steps of 64 answers" in printed
    figures = importlib.import_module("benchmarks.figures")
    (figure,) = [each for each in figures.FIGURES if each.name == "smollm2"]
    ratios = figures.ratios_of(printed)
    assert {bound.ratio for bound in figure.bounds} == set(ratios)
    assert ratios["accuracy by transformers, after / before"] == 3
    assert ratios["accuracy that the run measured, after / before"] == 2.5


def test_an_evaluation_without_numbers_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"evaluate\.py: printed no accuracy"):
        importlib.import_module("benchmarks.smollm2").Evaluation.read("Traceback")


def run_example(runs: Path, *flags: str, interrupt_after: int | None = None) -> str:
    """Run the example for STEPS steps, or interrupt it after some steps; return its output."""
    settings = (
        f"learner.steps={STEPS}",
        f"runs_dir={runs}",
        "staleness={pipeline_depth: 0, max_staleness: 0}",
        "algorithm.preset=grpo",
        "rollout.group_size=4",
        "learner.samples_per_step=8",
        "evaluation.prompts=16",
    )
    sets = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "slipstream.cli", "run", str(CONFIG), "--plain", *sets, *flags]
    output = runs / "output.log"
    with output.open("w") as stream:
        process = subprocess.Popen(command, cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + 600
            while interrupt_after is not None and f"step {interrupt_after}/" not in output.read_text():
                assert process.poll() is None, output.read_text()
                assert time.monotonic() < deadline, output.read_text()
                time.sleep(0.2)
            if interrupt_after is not None:
                process.send_signal(signal.SIGINT)
            assert process.wait(900) == 0, output.read_text()
        finally:
            process.kill()
    return output.read_text()


@pytest.mark.vllm
@pytest.mark.long
def test_the_example_trains_what_the_model_sampled_and_resumes_after_ctrl_c(
    tmp_path: Path,
) -> None:
    if not (MODEL / "config.json").is_file():
        pytest.skip("make example-smollm2 and make test-long make the model")
    output = run_example(tmp_path, interrupt_after=1)
    state = next((tmp_path / "latest" / "checkpoints").glob("*/state.json"))
    written = sum(file.stat().st_size for file in state.parent.rglob("*"))
    assert written > 1.2 * 2**30, "weights and both moments of 135 M parameters, in float32"
    assert "writing" in output
    assert "interrupted at step" in output
    run_example(tmp_path, "--resume")
    run = tmp_path / "latest"
    assert json.loads((run / "summary.json").read_text())["ledger_residual"] == 0
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["event"] == "step"]
    assert len(steps) == STEPS
    assert max(row["mean_log_ratio_sq"] for row in steps) < 1e-8  # all in float32
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
