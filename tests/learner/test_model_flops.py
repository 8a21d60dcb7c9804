"""FLOPs of a step equal torch's count: adapters, experts, shared prompts, several passes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from learner.fakes import completion, config_with, group
from slipstream.config.lora import LoraConfig
from slipstream.learner.policy.lora import LoraPolicy
from slipstream.learner.policy.model import Policy
from slipstream.learner.run_gauges import bfloat16_tflops, peak_flops
from slipstream.learner.training.model_flops import model_flops
from slipstream.learner.training.step import TrainingStep
from slipstream.records import Group
from torch.utils.flop_counter import FlopCounterMode

CPU = torch.device("cpu")
WIDTH, LAYERS, VOCABULARY, MLP = 32, 2, 99, 128
ATTENTION_WEIGHTS, MLP_WEIGHTS = 4 * WIDTH * WIDTH, 3 * WIDTH * MLP
GROUPS = [
    group(completion((5, 6, 7), reward=1.0), completion((8, 9), reward=0.0), prompt=(3, 4)),
    group(completion((10, 11, 12), reward=0.0, mask=(1, 0, 1)), completion((14,), reward=1.0), prompt=(2,)),
]
TOKENS = (2 + 3) + (2 + 2) + (1 + 3) + (1 + 1)
POSITIONS = 3 + 2 + 2 + 1
PAIRS = 15 + 10 + 10 + 3


def counted_in_layers(policy: Policy, tokens: int) -> dict[str, int]:
    """FLOPs that torch counts forward and backward in the layers, by the name of the operation."""
    ids = torch.arange(tokens)[None]
    with FlopCounterMode(display=False) as counter:
        policy.model.base_model(input_ids=ids, use_cache=False)[0].sum().backward()
    return {str(name): count for name, count in counter.get_flop_counts()["Global"].items()}


def trained(policy: Policy, groups: list[Group], *overrides: str, **tree: Any) -> float:
    return TrainingStep(policy, config_with(*overrides, **tree)).train(groups, version=0).model_flops


def test_the_flops_of_the_matrices_are_those_that_torch_counts(policy: Policy) -> None:
    counted = counted_in_layers(policy, 16)
    matrices = sum(count for name, count in counted.items() if name in ("aten.mm", "aten.addmm"))
    assert model_flops(policy).token * 16 == matrices
    assert model_flops(policy).token == 6 * LAYERS * (ATTENTION_WEIGHTS + MLP_WEIGHTS)


def test_the_flops_of_a_pair_of_tokens_are_those_that_torch_counts(policy: Policy) -> None:
    """torch counts every pair of a sequence, a causal mask or not."""
    query, key, value = (torch.randn(1, 1, 16, WIDTH, requires_grad=True) for _ in range(3))
    with FlopCounterMode(display=False) as counter:
        ((query @ key.transpose(2, 3)) @ value).sum().backward()
    assert model_flops(policy).pair * 16 * 16 == LAYERS * counter.get_total_flops()


def test_a_step_counts_tokens_sampled_tokens_and_pairs_of_every_pass(policy: Policy) -> None:
    flops = model_flops(policy)
    assert flops.position == 6 * VOCABULARY * WIDTH
    once = flops.of(TOKENS, POSITIONS, PAIRS)
    assert trained(policy, GROUPS) == once
    assert trained(policy, GROUPS, "learner.minibatches=2", "learner.epochs=3") == 3 * once


def test_a_shared_prompt_is_computed_once_and_seen_by_both(policy: Policy) -> None:
    without_copies = model_flops(policy).of(TOKENS - 2 - 1, POSITIONS, PAIRS - 3 - 1)
    assert trained(policy, GROUPS, "learner.share_prompts=true") == without_copies


def test_only_the_active_experts_count(moe_policy: Policy) -> None:
    experts = 3 * WIDTH * 64 * 2  # two active ones of eight, with three matrices each
    router = 8 * WIDTH
    assert model_flops(moe_policy).token == 6 * 3 * (ATTENTION_WEIGHTS + experts + router)


def test_weights_below_adapters_have_no_gradient_of_their_own(new_policy: Callable[[], Policy]) -> None:
    adapted = LoraPolicy(new_policy(), LoraConfig(rank=2, target_modules=("q_proj",)))
    layer = 4 * (ATTENTION_WEIGHTS + MLP_WEIGHTS) + 6 * 2 * (2 * WIDTH)
    assert model_flops(adapted).token == LAYERS * layer
    assert model_flops(adapted).position == 4 * VOCABULARY * WIDTH


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA A100 80GB PCIe", 312.0),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA H200", 989.4),
        ("NVIDIA H200 NVL", 835.5),
        ("NVIDIA L4", 121.0),
        ("NVIDIA L40S", 362.0),
        ("NVIDIA A10G", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("Tesla T4", None),
    ],
)
def test_the_peak_of_a_gpu_is_that_of_its_name(name: str, tflops: float | None) -> None:
    assert bfloat16_tflops(name) == tflops


def test_an_unlisted_device_has_no_peak_until_it_is_configured() -> None:
    assert peak_flops(config_with(), CPU) is None
    assert peak_flops(config_with("learner.peak_tflops=0.5"), CPU) == 0.5e12
