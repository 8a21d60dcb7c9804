"""The parts of benchmarks/staleness_quality that compute its table."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from slipstream.learner.batches.batch import make_sequences, sampled_tokens
from slipstream.learner.batches.packing import pack
from slipstream.learner.batches.rows import make_row
from slipstream.learner.policy.model import Policy
from slipstream.learner.training.step import TrainingStep
from slipstream.prompts import make_source
from slipstream.records import Prompt
from slipstream.tokens import load_tokens


@pytest.fixture(scope="session")
def benchmark() -> ModuleType:
    return importlib.import_module("benchmarks.staleness_quality.__main__")


@pytest.fixture(scope="session")
def tables(benchmark: ModuleType) -> ModuleType:
    return importlib.import_module("benchmarks.staleness_quality.report")


def setting(benchmark: ModuleType, **changes: Any) -> Any:
    return benchmark.Setting(
        **{
            "objective": "ppo_clip",
            "depth": 2,
            "seed": 0,
            "steps": 5,
            "groups": 3,
            "learning_rate": 1e-3,
            **changes,
        }
    )


def sampler(benchmark: ModuleType, policy: Policy, directory: Path, config: Any) -> Any:
    tokens = load_tokens(directory, max_new_tokens=config.rollout.max_new_tokens)
    return benchmark.Sampler(policy, tokens, config)


def row(benchmark: ModuleType, *, after: float, **changes: Any) -> dict[str, Any]:
    setting_of_row = setting(benchmark, **changes)
    bounded = {"clip_fraction_low": 0.125, "clip_fraction_high": 0.25}
    return {**benchmark.asdict(setting_of_row), "before": 0.4, "after": after, **bounded}


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_recorded_logprobs_are_those_that_the_learner_computes_at_the_same_weights(
    benchmark: ModuleType, policy: Policy, tiny_dir: Path, temperature: float
) -> None:
    config = setting(benchmark).config()
    rollout = config.rollout.model_copy(update={"temperature": temperature})
    config = config.model_copy(update={"rollout": rollout})
    source = make_source(config.data, seed=0)
    prompts = [source.training(index) for index in range(8)]
    made = sampler(benchmark, policy, tiny_dir, config).groups(prompts, version=0, size=4, seed=0)
    step = TrainingStep(policy, config)
    sequences = make_sequences(made, config.algorithm.resolved_shaping(max_new_tokens=8))
    assert len({len(sequence.segment.token_ids) for sequence in sequences}) > 1  # some end before others
    for packed in pack(sequences, max_tokens=256, share_prompts=True):
        packed_row = make_row(packed, sampled_tokens(sequences), policy.device, share_prompts=True)
        with torch.no_grad():
            found_T = step.forward(policy, packed_row).logprobs_T
        torch.testing.assert_close(packed_row.rollout_logprobs_T, found_T, atol=1e-5, rtol=0)


def test_a_completion_ends_at_the_end_of_sequence_or_at_the_budget(
    benchmark: ModuleType, policy: Policy, tiny_dir: Path
) -> None:
    config, end = setting(benchmark).config(), policy.model.config.eos_token_id
    prompts = [make_source(config.data, seed=0).training(index) for index in range(8)]
    made = sampler(benchmark, policy, tiny_dir, config).groups(prompts, version=3, size=8, seed=0)
    completions = [completion for group in made for completion in group.completions]
    assert {completion.finish_reason.value for completion in completions} == {"stop", "length"}
    for completion in completions:
        assert end not in completion.token_ids[:-1]
        stopped = completion.token_ids[-1] == end
        assert completion.finish_reason.value == ("stop" if stopped else "length")
        assert stopped or len(completion.token_ids) == 8
        assert [(span.version, span.start) for span in completion.spans] == [(3, 0)]


def test_draws_follow_the_policy(benchmark: ModuleType, policy: Policy, tiny_dir: Path) -> None:
    # First tokens of 4,000 completions of one prompt. A total variation of k cells of n draws is about
    # sqrt(k / (2 pi n)): 0.06 for 99 tokens. Greedy or uniform draws are far from it.
    config = setting(benchmark).config()
    prompt = make_source(config.data, seed=0).training(0)
    drawing = sampler(benchmark, policy, tiny_dir, config)
    made = drawing.groups([prompt], version=0, size=4000, seed=0)[0]
    vocabulary = policy.model.config.vocab_size
    firsts = torch.tensor([completion.token_ids[0] for completion in made.completions])
    shares_V = torch.bincount(firsts, minlength=vocabulary) / len(firsts)
    with torch.no_grad():
        logits_V = policy.model(torch.tensor([made.prompt_token_ids])).logits[0, -1]
    uniform_V = torch.full((vocabulary,), 1 / vocabulary)
    assert (shares_V - logits_V.softmax(0)).abs().sum() / 2 < 0.1
    assert (uniform_V - logits_V.softmax(0)).abs().sum() / 2 > 0.2


def test_prompts_of_several_lengths_are_refused(
    benchmark: ModuleType, policy: Policy, tiny_dir: Path
) -> None:
    prompts = [Prompt(prompt_id=text, task="addition", answer="4", text=text) for text in ("2+2=", "20+2=")]
    drawing = sampler(benchmark, policy, tiny_dir, setting(benchmark).config())
    with pytest.raises(ValueError, match=r"prompts: got lengths \[4, 5\], needs one length"):
        drawing.groups(prompts, version=0, size=2, seed=0)


@pytest.mark.parametrize(
    ("depth", "ages"), [(0, [0, 0, 0, 0, 0]), (2, [0, 1, 2, 2, 2]), (8, [0, 1, 2, 3, 4])]
)
def test_a_batch_is_trained_on_at_exactly_the_depth_once_the_pipeline_is_full(
    benchmark: ModuleType, policy: Policy, tiny_dir: Path, depth: int, ages: list[int]
) -> None:
    config = setting(benchmark, depth=depth).config()
    drawing = sampler(benchmark, policy, tiny_dir, config)
    trained_run = benchmark.train(TrainingStep(policy, config), drawing, config, depth=depth, seed=0)
    assert trained_run["ages"] == ages


@pytest.mark.parametrize("objective", ["ppo_clip", "cispo", "gspo", "sapo", "pg"])
def test_every_objective_has_its_own_loss_and_the_advantage_of_all(
    benchmark: ModuleType, objective: str
) -> None:
    algorithm = setting(benchmark, objective=objective, depth=8).config().algorithm
    loss = algorithm.resolved_loss(max_staleness=8, max_new_tokens=8)
    assert loss.objective.kind == objective
    assert loss.aggregation.kind == ("token_mean" if objective == "cispo" else "seq_mean_token_mean")
    assert algorithm.resolved_advantage().kind == "grpo"


def test_runs_with_one_seed_start_from_the_same_batch(
    benchmark: ModuleType, new_policy: Callable[[], Policy], tiny_dir: Path
) -> None:
    firsts = []
    for depth in (0, 2):
        config = setting(benchmark, depth=depth, steps=1).config()
        policy = new_policy()
        drawing = sampler(benchmark, policy, tiny_dir, config)
        benchmark.train(TrainingStep(policy, config), drawing, config, depth=depth, seed=0)
        firsts.append(torch.cat([tensor.flatten() for _, tensor in policy.named_tensors()]))
    assert torch.equal(*firsts)


def test_a_run_that_two_processes_made_counts_once(benchmark: ModuleType, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    rows = [row(benchmark, after=0.5, seed=seed) for seed in (0, 1, 1)]
    results.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    assert [each["seed"] for each in benchmark.read(results)] == [0, 1]


def test_finished_runs_are_not_repeated(benchmark: ModuleType) -> None:
    settings = [setting(benchmark, seed=seed) for seed in range(3)]
    rows = [row(benchmark, after=0.5, seed=1), row(benchmark, after=0.5, seed=0, steps=99)]
    assert benchmark.missing(settings, rows) == [settings[0], settings[2]]


def test_the_table_has_mean_and_standard_deviation_over_the_seeds(
    benchmark: ModuleType, tables: ModuleType
) -> None:
    # 50, 60 and 70 %: mean 60, sample standard deviation 10; 0.125 + 0.25 of the tokens are bounded.
    rows = [row(benchmark, after=0.5 + seed / 10, seed=seed) for seed in range(3)]
    rows += [row(benchmark, after=0.3, depth=8), row(benchmark, after=0.2, objective="pg")]
    lines = tables.report(rows, ["ppo_clip", "cispo", "pg"]).splitlines()
    assert lines[0] == "Learning rate 0.001, 5 steps of 3 groups, 3 seeds; 40.0% before."
    assert lines[2] == "| objective | depth 2 | depth 8 | bounded, 2 | bounded, 8 |"
    assert lines[4:] == [
        "| `ppo_clip` | 60.0 ± 10.0 | 30.0 (n = 1) | 37.5% | 37.5% |",
        "| `pg` | 20.0 (n = 1) | – | 37.5% | – |",
    ]
