"""In bfloat16 the learner computes what a model in bfloat16 computes, and trains float32 weights."""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from learner.fakes import config_with, contrast, save
from safetensors.torch import load_file
from slipstream.config import LoraConfig
from slipstream.learner.checkpoints.checkpoint import State
from slipstream.learner.export import export, main
from slipstream.learner.policy.loading import load_policy
from slipstream.learner.policy.lora import LoraPolicy, load_trained
from slipstream.learner.policy.model import Policy
from slipstream.learner.policy.precision import compute_in
from slipstream.learner.ranks.sharding import checkpoint_activations
from slipstream.learner.training.step import TrainingStep
from transformers import AutoModelForCausalLM

CPU = torch.device("cpu")
TOKENS = torch.tensor([5, 9, 17, 4, 8, 21, 6])
PLACES = torch.arange(len(TOKENS) - 1)


def load(directory: Path, dtype: torch.dtype = torch.bfloat16) -> Policy:
    return load_policy(directory, source=directory, device=CPU, dtype=dtype)


def logprobs(policy: Policy) -> torch.Tensor:
    """Of every token after the first."""
    return policy.selected(TOKENS, torch.arange(len(TOKENS)), PLACES, TOKENS[1:], temperature=1.0).logprobs_T


def theirs(policy: Policy) -> torch.Tensor:
    """The same from a model whose weights are bfloat16, with a head in float32, as vLLM has it."""
    model = copy.deepcopy(policy.model)
    compute_in(model, torch.float32)
    for parameter in model.parameters():  # and not the rotary frequencies, which stay float32 everywhere
        parameter.data = parameter.data.bfloat16()
    hidden = model.base_model(
        input_ids=TOKENS[None], position_ids=torch.arange(len(TOKENS))[None], use_cache=False
    )
    logits = hidden.last_hidden_state[0, :-1].float() @ model.get_output_embeddings().weight.float().T
    return logits.log_softmax(dim=-1).gather(1, TOKENS[1:, None])[:, 0]


@pytest.fixture(params=["dense", "experts"])
def half(request: pytest.FixtureRequest, tiny_dir: Path, moe_dir: Path) -> Policy:
    """A policy in bfloat16 whose weights bfloat16 cannot hold."""
    policy = load(tiny_dir if request.param == "dense" else moe_dir)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return policy


def test_a_forward_pass_is_that_of_a_model_in_bfloat16(half: Policy) -> None:
    with torch.no_grad():
        torch.testing.assert_close(logprobs(half), theirs(half), rtol=0, atol=1e-5)


def test_autocast_was_something_else(tiny_dir: Path) -> None:
    policy = load(tiny_dir)
    with torch.no_grad():
        expected = theirs(policy)
        compute_in(policy.model, torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert (logprobs(policy) - expected).abs().max() > 1e-4


def gradients(policy: Policy) -> dict[str, torch.Tensor]:
    policy.model.zero_grad()
    logprobs(policy).sum().backward()
    named = policy.trained_parameters()
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


def test_gradients_reach_the_float32_weights(half: Policy) -> None:
    found = gradients(half)
    assert {gradient.dtype for gradient in found.values()} == {torch.float32}
    compute_in(half.model, torch.float32)
    flat = [torch.cat([g.flatten() for g in each.values()]) for each in (found, gradients(half))]
    assert torch.nn.functional.cosine_similarity(*flat, dim=0) > 0.99


def test_layers_that_are_computed_again_for_the_backward_pass_are_rounded_again(tiny_dir: Path) -> None:
    expected, again = gradients(load(tiny_dir)), load(tiny_dir)
    checkpoint_activations(again.model)
    found = gradients(again)
    assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())


def test_a_copy_of_the_model_computes_with_its_own_weights(tiny_dir: Path) -> None:
    policy = load(tiny_dir)
    other = Policy(copy.deepcopy(policy.model), source=tiny_dir, device=CPU, dtype=torch.bfloat16)
    before = logprobs(policy)
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.mul_(2.0)
    assert not torch.allclose(logprobs(other), before)
    assert torch.equal(logprobs(policy), before)


def test_adapters_compute_in_bfloat16_and_train_in_float32(tiny_dir: Path) -> None:
    base = load_policy(tiny_dir, source=tiny_dir, device=CPU, dtype=torch.bfloat16, stored=torch.bfloat16)
    with torch.no_grad():
        expected = logprobs(base)
    policy = LoraPolicy(base, LoraConfig(rank=4))
    with torch.no_grad():
        assert torch.equal(logprobs(policy), expected)
    assert {gradient.dtype for gradient in gradients(policy).values()} == {torch.float32}
    dtypes: list[torch.dtype] = []
    policy.model.get_submodule("model.layers.0.self_attn.q_proj.lora_A.default").register_forward_hook(
        lambda module, inputs, output: dtypes.append(output.dtype)
    )
    logprobs(policy)
    assert dtypes == [torch.bfloat16]


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
    found = load_file(tmp_path / "model" / "model.safetensors")
    published = {name: t.to(torch.bfloat16) for name, t in training.policy.named_tensors()}
    assert found.keys() == published.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in published.items())
    assert json.loads((tmp_path / "model" / "config.json").read_text())["dtype"] == "bfloat16"
    again = load(tmp_path / "model")
    with torch.no_grad():
        assert torch.equal(logprobs(again), logprobs(training.policy))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto")
    assert loaded.dtype is torch.bfloat16


def test_float32_is_exported_on_request_of_the_command_or_the_configuration(
    tiny_dir: Path, tmp_path: Path
) -> None:
    training = trained(tiny_dir)
    save(tmp_path / "a" / "checkpoints", training, State(version=1, model_fingerprint="f"))
    assert main([str(tmp_path / "a"), str(tmp_path / "one"), "--dtype", "float32"]) == 0
    asked = trained(tiny_dir, "learner.checkpoint.model_dtype=float32")
    save(tmp_path / "b" / "checkpoints", asked, State(version=1, model_fingerprint="f"))
    assert main([str(tmp_path / "b"), str(tmp_path / "two")]) == 0
    for folder, of in (("one", training), ("two", asked)):
        found = load_file(tmp_path / folder / "model.safetensors")
        assert all(torch.equal(found[name], tensor) for name, tensor in of.policy.named_tensors())
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
