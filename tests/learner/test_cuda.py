"""What runs on a GPU computes what it computes on a CPU."""

from pathlib import Path

import pytest
import torch
from learner.fakes import config_with, contrast, unguarded
from slipstream.config import TinyModel
from slipstream.learner.model import load_policy
from slipstream.learner.step import TrainingStep
from slipstream.learner.tiny import make_tiny_model
from slipstream.weights.transfer import checksum

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_a_step_has_the_loss_and_gradient_norm_that_it_has_on_a_cpu(tmp_path: Path) -> None:
    make_tiny_model(TinyModel(layers=2, width=64, heads=2), tmp_path, seed=0)
    results = []
    for name in ("cpu", "cuda"):
        policy = load_policy(tmp_path, source=tmp_path, device=torch.device(name), dtype=torch.float32)
        results.append(TrainingStep(policy, config_with()).train([contrast()], version=0, update=unguarded))
    assert results[1].loss == pytest.approx(results[0].loss, abs=1e-4)
    assert results[1].gradient_norm == pytest.approx(results[0].gradient_norm, rel=1e-3)


def test_a_checksum_does_not_depend_on_the_device() -> None:
    words = torch.randint(-(2**62), 2**62, (3_000_000,), generator=torch.Generator().manual_seed(0))
    assert checksum(words) == checksum(words.cuda())
