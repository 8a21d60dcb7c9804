"""A run in bfloat16 trains float32 weights, and writes the bfloat16 weights that it published."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from learner.fakes import completion, config_with, contrast, group, save
from learner.test_step import on_policy
from safetensors.torch import load_file
from slipstream.learner.checkpoints.checkpoint import State
from slipstream.learner.export import export, main
from slipstream.learner.policy.lora import load_trained
from slipstream.learner.policy.model import Policy
from slipstream.learner.training.step import TrainingStep
from transformers import AutoModelForCausalLM

CPU = torch.device("cpu")


def trained(directory: Path, *overrides: str) -> TrainingStep:
    """A run in bfloat16 after one step."""
    config = config_with("model.dtype=bfloat16", *overrides, model={"path": str(directory)})
    training = TrainingStep(load_trained(config, device=CPU), config)
    training.train([contrast("a")], version=0)
    return training


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_a_run_in_bfloat16_exports_the_weights_that_it_published(
    tiny_dir: Path, moe_dir: Path, tmp_path: Path, kind: str
) -> None:
    training = trained(tiny_dir if kind == "dense" else moe_dir)
    checkpoint = save(tmp_path / "run" / "checkpoints", training, State(version=1, model_fingerprint="f"))
    export(checkpoint, tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    published = {name: t.to(torch.bfloat16) for name, t in training.policy.named_tensors()}
    assert tensors.keys() == published.keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in published.items())
    assert json.loads((tmp_path / "model" / "config.json").read_text())["dtype"] == "bfloat16"
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto")
    assert loaded.dtype is torch.bfloat16


def test_float32_is_exported_on_request_of_the_command_or_the_configuration(
    tiny_dir: Path, tmp_path: Path
) -> None:
    training = trained(tiny_dir)
    save(tmp_path / "a" / "checkpoints", training, State(version=1, model_fingerprint="f"))
    assert main([str(tmp_path / "a"), str(tmp_path / "one"), "--dtype", "float32"]) == 0
    exported_in_float32 = trained(tiny_dir, "learner.checkpoint.model_dtype=float32")
    save(tmp_path / "b" / "checkpoints", exported_in_float32, State(version=1, model_fingerprint="f"))
    assert main([str(tmp_path / "b"), str(tmp_path / "two")]) == 0
    for folder, of in (("one", training), ("two", exported_in_float32)):
        tensors = load_file(tmp_path / folder / "model.safetensors")
        assert all(torch.equal(tensors[name], tensor) for name, tensor in of.policy.named_tensors())
        assert json.loads((tmp_path / folder / "config.json").read_text())["dtype"] == "float32"


def test_adapters_of_a_run_in_bfloat16_are_exported_in_it(tiny_dir: Path, tmp_path: Path) -> None:
    training = trained(tiny_dir, "learner.lora={rank: 4}")
    checkpoint = save(tmp_path / "run" / "checkpoints", training, State(version=1, model_fingerprint="f"))
    export(checkpoint, tmp_path / "model")
    adapters = load_file(tmp_path / "model-adapter" / "adapter_model.safetensors")
    served = dict(training.policy.named_tensors())
    assert adapters.keys() == served.keys()
    assert all(torch.equal(adapters[name], tensor) for name, tensor in served.items())
    merged = load_file(tmp_path / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in merged.values()} == {torch.bfloat16}


def test_saving_changes_nothing_of_the_policy(new_policy: Callable[[], Policy], tmp_path: Path) -> None:
    policy = new_policy()
    before = {name: tensor.clone() for name, tensor in policy.named_tensors()}
    policy.save(tmp_path, dtype=torch.bfloat16)
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.named_tensors())


def test_rounding_alone_costs_gspo_gradient_and_decoupled_gspo_none(
    tiny_dir: Path, new_policy: Callable[[], Policy]
) -> None:
    """The rollout's logprobs are those of the same weights in float32, and the trunk is in bfloat16."""
    answers = [(tuple(range(5 + i, 29 + i)), float(i % 2)) for i in range(12)]
    groups = on_policy(
        new_policy(),
        [
            group(*(completion(tokens, reward=reward) for tokens, reward in answers[i : i + 4]), name=f"g{i}")
            for i in (0, 4, 8)
        ],
    )

    def without_gradient(preset: str) -> float:
        config = config_with(
            "model.dtype=bfloat16", model={"path": str(tiny_dir)}, algorithm={"preset": preset}
        )
        metrics = TrainingStep(load_trained(config, device=CPU), config).train(groups, version=0).metrics
        assert metrics["kl_rollout"] > 1e-7
        return metrics["zero_gradient_fraction"]

    assert without_gradient("gspo") > 0.2
    assert without_gradient("decoupled_gspo") == 0
