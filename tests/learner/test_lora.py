"""Only adapters are trained, saved and published; without adapters the policy is the base model."""

import json
from collections.abc import Callable
from pathlib import Path

import peft
import pytest
import torch
from learner.fakes import config_with, contrast, save
from learner.test_step import GROUPS, on_policy
from slipstream.config import LoraConfig, RunConfig
from slipstream.learner.checkpoints.checkpoint import State
from slipstream.learner.export import export
from slipstream.learner.policy.checkpoint_form import CheckpointError
from slipstream.learner.policy.loading import load_policy
from slipstream.learner.policy.logprobs import Selected
from slipstream.learner.policy.lora import LoraPolicy, load_trained
from slipstream.learner.policy.model import Policy
from slipstream.learner.policy.reference import load_reference
from slipstream.learner.training.state import restore
from slipstream.learner.training.step import TrainingStep
from slipstream.weights.manifest import plan
from transformers import AutoModelForCausalLM

CPU = torch.device("cpu")
TOKENS = torch.tensor([5, 6, 7, 8, 9, 10])
LINEAR = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def adapted(policy: Policy, *, move: float = 0.0, seed: int = 0, **lora: object) -> LoraPolicy:
    """A policy with adapters; `move` is the size of the random numbers that B gets in place of 0."""
    torch.manual_seed(seed)
    made = LoraPolicy(policy, LoraConfig.model_validate({"rank": 4, "alpha": 8, **lora}))
    with torch.no_grad():
        for name, parameter in made.trained_parameters():
            if move and ".lora_B." in name:
                parameter.normal_(0, move)
    return made


def logprobs(policy: Policy) -> torch.Tensor:
    places = torch.arange(len(TOKENS) - 1)
    with torch.no_grad():
        return policy.selected(
            TOKENS, torch.arange(len(TOKENS)), places, TOKENS[1:], temperature=1.0, chunk=64
        ).logprobs_T


def base_of(policy: LoraPolicy) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in policy.model.named_parameters() if ".lora_" not in n}


def adapters_of(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in policy.trained_parameters()}


def run_config(tiny_dir: Path, *overrides: str) -> RunConfig:
    return config_with(
        "learner.lora.rank=4", *overrides, model={"path": str(tiny_dir)}, run_dir=str(tiny_dir)
    )


def step(training: TrainingStep, version: int) -> None:
    training.train([contrast(str(version))], version=version - 1)


def test_fresh_adapters_change_no_logprob(new_policy: Callable[[], Policy]) -> None:
    before = logprobs(new_policy())
    assert torch.equal(logprobs(adapted(new_policy())), before)
    assert (logprobs(adapted(new_policy(), move=0.1)) - before).abs().max() > 0.01


def test_adapters_on_experts_are_refused(moe_dir: Path) -> None:
    with pytest.raises(ValueError, match=r"adapters on experts \(model.layers.0.mlp.experts.*q_proj"):
        load_trained(run_config(moe_dir), device=CPU)
    policy = load_trained(run_config(moe_dir, "learner.lora.target_modules=[q_proj, o_proj]"), device=CPU)
    assert all("base_layer" not in name for name, _ in policy.whole_model())


def test_a_base_in_bfloat16_keeps_the_frequencies_of_its_positions_in_float32(tiny_dir: Path) -> None:
    policy = load_trained(run_config(tiny_dir, "model.dtype=bfloat16"), device=CPU)
    in_float32 = load_policy(tiny_dir, source=tiny_dir, device=CPU, dtype=torch.float32)
    buffers = dict(in_float32.model.named_buffers())
    buffers_by_name = dict(policy.model.named_buffers())
    assert buffers
    for name, expected in buffers.items():
        assert buffers_by_name[name].dtype is torch.float32
        assert torch.equal(buffers_by_name[name], expected)


def test_every_linear_layer_but_the_head_is_adapted_unless_some_are_named(
    new_policy: Callable[[], Policy],
) -> None:
    def layers(policy: LoraPolicy) -> set[str]:
        return {name.split(".")[-3] for name, _ in policy.trained_parameters()}

    assert layers(adapted(new_policy())) == LINEAR
    named = adapted(new_policy(), target_modules=["q_proj", "model.layers.1.mlp.up_proj"])
    assert layers(named) == {"q_proj", "up_proj"}
    assert len(list(named.trained_parameters())) == 2 * (2 + 1)  # q_proj in both layers, up_proj in one


def test_a_target_that_the_model_has_not_is_refused_with_those_that_it_has(policy: Policy) -> None:
    with pytest.raises(ValueError, match="no linear layer `query` to adapt; it has down_proj, gate_proj"):
        adapted(policy, target_modules=["q_proj", "query"])


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens", "norm"])
def test_the_head_and_modules_that_are_not_linear_are_no_targets(policy: Policy, target: str) -> None:
    with pytest.raises(ValueError, match=f"no linear layer `{target}`"):
        adapted(policy, target_modules=[target])


def test_a_step_changes_the_adapters_and_no_bit_of_the_base(policy: Policy) -> None:
    made = adapted(policy)
    base, adapters = base_of(made), adapters_of(made)
    training = TrainingStep(made, config_with())
    for version in (1, 2):
        step(training, version)
    assert all(torch.equal(tensor, base[name]) for name, tensor in base_of(made).items())
    changed = [not torch.equal(tensor, adapters[name]) for name, tensor in adapters_of(made).items()]
    assert all(changed)
    assert len(training.optimizer.state) == len(adapters)
    assert all(p.grad is None for n, p in made.model.named_parameters() if ".lora_" not in n)


def test_the_gradient_is_that_of_the_merged_weights_through_the_two_factors(policy: Policy) -> None:
    """With y = (W + s B A) x: dA = s Bᵀ dW and dB = s dW Aᵀ, where dW is the merged weight's gradient."""
    made = adapted(policy, move=0.1)
    directory = policy.source
    full = load_policy(directory, source=directory, device=CPU, dtype=torch.float32)
    full.model.load_state_dict(dict(made.merged()), strict=False)
    places = torch.arange(len(TOKENS) - 1)
    for one in (made, full):
        one.selected(
            TOKENS, torch.arange(len(TOKENS)), places, TOKENS[1:], temperature=1.0, chunk=64
        ).logprobs_T.sum().backward()
    own = dict(made.trained_parameters())
    for name in {name.rsplit(".", 2)[0] for name in own}:
        a, b = own[f"{name}.lora_A.weight"], own[f"{name}.lora_B.weight"]
        gradient = full.model.get_parameter(name.removeprefix("base_model.model.") + ".weight").grad
        torch.testing.assert_close(a.grad, 2.0 * b.detach().T @ gradient, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(b.grad, 2.0 * gradient @ a.detach().T, rtol=1e-3, atol=1e-5)


def test_merged_tensors_are_those_that_peft_merges(new_policy: Callable[[], Policy], tmp_path: Path) -> None:
    made = adapted(new_policy(), move=0.1)
    made.save_adapters(tmp_path)
    theirs = peft.PeftModel.from_pretrained(new_policy().model, tmp_path).merge_and_unload()
    expected = dict(theirs.named_parameters())
    merged = dict(made.named_tensors())
    assert merged.keys() == expected.keys() == dict(new_policy().named_tensors()).keys()
    for name, tensor in merged.items():
        torch.testing.assert_close(tensor, expected[name].detach(), rtol=0, atol=1e-6)
    name = "model.layers.0.self_attn.q_proj.weight"
    moved = merged[name] - new_policy().model.get_parameter(name)
    assert torch.linalg.matrix_rank(moved, atol=1e-4) == 4


def test_merging_touches_no_weight_and_the_merged_model_has_the_logprobs_of_the_policy(
    policy: Policy, tmp_path: Path
) -> None:
    made = adapted(policy, move=0.1)
    base, adapters, before = base_of(made), adapters_of(made), logprobs(made)
    made.save(tmp_path / "model")
    assert all(torch.equal(tensor, base[name]) for name, tensor in base_of(made).items())
    assert all(torch.equal(tensor, adapters[name]) for name, tensor in adapters_of(made).items())
    loaded = load_policy(tmp_path / "model", source=policy.source, device=CPU, dtype=torch.float32)
    torch.testing.assert_close(logprobs(loaded), before, rtol=0, atol=1e-5)
    assert (tmp_path / "model" / "tokenizer.json").exists()


def test_a_finished_run_leaves_adapters_that_peft_loads_beside_the_merged_model(
    new_policy: Callable[[], Policy], tmp_path: Path
) -> None:
    made = adapted(new_policy(), move=0.1)
    training = TrainingStep(made, config_with())
    saved = save(tmp_path / "checkpoints", training, State(version=1, model_fingerprint="f"))
    export(saved, tmp_path / "model")
    names = ["checkpoints", "model", "model-adapter"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert json.loads((tmp_path / "model-adapter" / "adapter_config.json").read_text())["lora_alpha"] == 8
    theirs = peft.PeftModel.from_pretrained(new_policy().model, tmp_path / "model-adapter").eval()
    logprobs_of_peft = (
        theirs(input_ids=TOKENS[None]).logits[0, :-1].log_softmax(-1).gather(1, TOKENS[1:, None])[:, 0]
    )
    torch.testing.assert_close(logprobs_of_peft, logprobs(made), rtol=0, atol=1e-5)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert not any("lora" in name for name, _ in plain.named_parameters())


def test_the_policy_without_adapters_is_the_model_of_the_start_and_shares_its_memory(
    new_policy: Callable[[], Policy],
) -> None:
    made = adapted(new_policy(), move=0.1)
    base = made.without_adapters()
    assert base.model is made.model
    with_adapters = logprobs(made)
    torch.testing.assert_close(logprobs(base), logprobs(new_policy()), rtol=0, atol=0)
    assert torch.equal(logprobs(made), with_adapters)
    assert all(parameter.requires_grad for _, parameter in made.trained_parameters())


def test_the_reference_of_a_kl_term_is_no_second_copy(tiny_dir: Path) -> None:
    config = run_config(tiny_dir, "algorithm.kl={coefficient: 0.1}")
    policy = load_trained(config, device=CPU)
    reference = load_reference(config, device=CPU, dtype=torch.float32, policy=policy)
    assert reference is not None
    assert reference.policy.model is policy.model
    training = TrainingStep(policy, config, reference=reference)
    first = training.train([contrast()], version=0)
    second = training.train([contrast()], version=1)
    assert first.metrics["kl_ref"] == pytest.approx(0.0, abs=1e-6)
    assert second.metrics["kl_ref"] > 1e-4


def test_rows_that_share_prompts_have_the_gradient_of_rows_that_do_not(policy: Policy) -> None:
    made = adapted(policy, move=0.1)
    groups = on_policy(made, GROUPS)

    def gradient(*overrides: str) -> torch.Tensor:
        collected: list[torch.Tensor] = []

        def look(change: Callable[[], None]) -> None:
            collected.extend(p.grad.flatten() for _, p in made.trained_parameters() if p.grad is not None)

        config = config_with("learner.max_grad_norm=1e9", *overrides)
        TrainingStep(made, config).train(groups, version=0, update=look)
        return torch.cat(collected)

    apart = gradient("learner.share_prompts=false")
    assert apart.abs().max() > 1e-3
    torch.testing.assert_close(gradient("learner.share_prompts=true"), apart, rtol=1e-3, atol=1e-6)


def test_a_resumed_run_makes_bit_for_bit_the_adapters_of_one_that_never_stopped(
    tiny_dir: Path, tmp_path: Path
) -> None:
    config = run_config(tiny_dir, "learner.weight_decay=0.1")
    uninterrupted = TrainingStep(load_trained(config, device=CPU), config)
    step(uninterrupted, 1)
    saved = save(tmp_path, uninterrupted, State(version=1, model_fingerprint="f"))
    step(uninterrupted, 2)
    torch.manual_seed(99)  # other numbers at first in the adapters that are loaded into
    resumed = TrainingStep(load_trained(config, device=CPU), config)
    restore(resumed, saved)
    step(resumed, 2)
    expected = adapters_of(uninterrupted.policy)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in adapters_of(resumed.policy).items())


def test_a_checkpoint_holds_adapters_and_their_moments_only(tiny_dir: Path, tmp_path: Path) -> None:
    config = run_config(tiny_dir)
    training = TrainingStep(load_trained(config, device=CPU), config)
    step(training, 1)
    saved = save(tmp_path, training, State(version=1, model_fingerprint="f"))
    size = sum(path.stat().st_size for path in saved.rglob("*") if path.is_file())
    adapters = sum(4 * p.numel() for _, p in training.policy.trained_parameters())
    model = sum(4 * p.numel() for n, p in training.policy.model.named_parameters() if ".lora_" not in n)
    assert 3 * adapters < size < 3 * adapters + 60_000  # the adapters and two moments; names and settings
    assert size < 3 * model
    assert (saved / "model" / "adapter_config.json").exists()


@pytest.mark.parametrize(
    ("then", "now", "reason"),
    [
        (["learner.lora.rank=4"], ["learner.lora=null"], "is of adapters; set learner.lora back"),
        (["learner.lora=null"], ["learner.lora.rank=4"], "is not of adapters"),
        (["learner.lora.rank=4"], ["learner.lora.rank=8"], "with r 4, and learner.lora asks for 8"),
        (["learner.lora.alpha=4"], ["learner.lora.alpha=8"], "with lora_alpha 4"),
        ([], ["learner.lora.target_modules=[q_proj]"], "with target_modules .*down_proj"),
    ],
)
def test_a_checkpoint_of_another_kind_or_shape_is_refused(
    tiny_dir: Path, tmp_path: Path, then: list[str], now: list[str], reason: str
) -> None:
    before = TrainingStep(load_trained(run_config(tiny_dir, *then), device=CPU), run_config(tiny_dir))
    saved = save(tmp_path, before, State(version=1, model_fingerprint="f"))
    after = TrainingStep(load_trained(run_config(tiny_dir, *now), device=CPU), run_config(tiny_dir))
    with pytest.raises(CheckpointError, match=reason):
        restore(after, saved)


def test_the_published_tensors_are_the_merged_model_or_the_adapters_alone(
    new_policy: Callable[[], Policy],
) -> None:
    def travels(policy: Policy) -> int:
        shapes = [(name, tuple(tensor.shape)) for name, tensor in policy.named_tensors()]
        manifest = plan(shapes, dtype=torch.float32, bucket_bytes=1 << 20, model_fingerprint="f")
        return sum(manifest.bucket_bytes)

    # a layer of width 32: q, k, v, o are 32 → 32, gate and up 32 → 128, down 128 → 32; rank 4, two layers
    numbers = 2 * 4 * (4 * (32 + 32) + 3 * (32 + 128))
    assert travels(adapted(new_policy(), serve="adapter")) == 4 * numbers
    assert travels(adapted(new_policy(), serve="merged")) == travels(new_policy())


def test_a_base_in_half_precision_has_adapters_in_full_and_travels_in_half(tiny_dir: Path) -> None:
    config = run_config(tiny_dir, "model.dtype=bfloat16")
    policy = load_trained(config, device=CPU)
    adapters = dict(policy.trained_parameters())
    assert {p.dtype for p in adapters.values()} == {torch.float32}
    assert {p.dtype for n, p in policy.model.named_parameters() if ".lora_" not in n} == {torch.bfloat16}
    assert {tensor.dtype for _, tensor in policy.named_tensors()} == {torch.bfloat16}
    assert isinstance(policy, LoraPolicy)
    assert {tensor.dtype for _, tensor in policy.merged()} == {torch.float32}
    before = adapters_of(policy)
    step(TrainingStep(policy, config), 1)
    assert any(not torch.equal(p, before[name]) for name, p in policy.trained_parameters())
    selected: Selected = policy.selected(
        TOKENS, torch.arange(6), torch.arange(5), TOKENS[1:], temperature=1.0, chunk=64
    )
    assert selected.logprobs_T.dtype == torch.float32
