"""What runs on a GPU computes what it computes on a CPU."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from learner.fakes import config_with, contrast
from slipstream.algorithms import policy_loss
from slipstream.config import TinyModel
from slipstream.config.architecture import LogitTransform
from slipstream.learner.policy.loading import load_policy
from slipstream.learner.policy.logprobs import selected_logprobs
from slipstream.learner.policy.tiny import make_tiny_model
from slipstream.learner.training.step import TrainingStep
from slipstream.weights.transfer import checksum

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_a_step_has_the_loss_and_gradient_norm_that_it_has_on_a_cpu(tmp_path: Path) -> None:
    make_tiny_model(TinyModel(layers=2, width=64, heads=2), tmp_path, seed=0)
    results = []
    for name in ("cpu", "cuda"):
        policy = load_policy(tmp_path, source=tmp_path, device=torch.device(name), dtype=torch.float32)
        results.append(TrainingStep(policy, config_with()).train([contrast()], version=0))
    assert results[1].loss == pytest.approx(results[0].loss, abs=1e-4)
    assert results[1].gradient_norm == pytest.approx(results[0].gradient_norm, rel=1e-3)


def test_a_checksum_does_not_depend_on_the_device() -> None:
    words = torch.randint(-(2**62), 2**62, (3_000_000,), generator=torch.Generator().manual_seed(0))
    assert checksum(words) == checksum(words.cuda())


@pytest.mark.parametrize("transform", [LogitTransform(), LogitTransform(scale=0.7, soft_cap=3.0)])
@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_logprobs_and_gradients_are_those_of_a_cpu(
    with_entropy: bool, frozen: bool, dtype: torch.dtype, transform: LogitTransform
) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(300, 64, generator=generator).to(dtype)
    head = (torch.randn(5000, 64, generator=generator) / 4).to(dtype)
    targets = torch.randint(0, 5000, (300,), generator=generator)
    results = []
    for device in ("cpu", "cuda"):
        leaves = [hidden.to(device).requires_grad_(), head.to(device).requires_grad_(not frozen)]
        found = selected_logprobs(
            *leaves,
            targets.to(device),
            transform=transform,
            temperature=0.7,
            chunk=999,
            entropy_gradient=with_entropy,
        )
        loss = (found.logprobs_T * torch.linspace(-1, 1, 300, device=device)).sum() + found.entropy_T.sum()
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        all_of = [found.logprobs_T, found.entropy_T, *torch.autograd.grad(loss, wanted)]
        results.append([tensor.detach().cpu().float() for tensor in all_of])
    for cpu, cuda in zip(*results, strict=True):
        torch.testing.assert_close(cuda, cpu, atol=1e-4, rtol=1e-2 if dtype is torch.bfloat16 else 1e-4)


@pytest.mark.parametrize("preset", ["dapo", "m2po", "vespo"])
def test_the_host_waits_five_times_at_most_in_a_loss(preset: str) -> None:
    size = 100_000
    source = torch.Generator().manual_seed(0)
    logprobs = [-torch.rand(size, generator=source).cuda() for _ in range(3)]
    row: dict[str, Any] = {
        "logprobs": logprobs[0].requires_grad_(),
        "rollout_logprobs": logprobs[1],
        "old_logprobs": logprobs[2],
        "advantages": torch.randn(400, generator=source).cuda(),
        "mask": (torch.rand(size, generator=source) < 0.9).cuda(),
        "sequence_ids": (torch.arange(size) * 400 // size).cuda(),
        "staleness": torch.randint(0, 9, (size,), generator=source).cuda(),
    }
    policy_loss({"preset": preset}, **row).loss.backward()  # what is set up once
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            policy_loss({"preset": preset}, **row).loss.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = [str(one.message) for one in caught if "synchronizing" in str(one.message)]
    assert 1 <= len(waits) <= 5, waits
