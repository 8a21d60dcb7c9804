"""In bfloat16 equal weights leave a narrow band, and validate says how much of the gradient that costs."""

import math

import pytest
import torch
from slipstream.config import parse_config
from slipstream.config.checks import Problem, check_config
from slipstream.config.precision_checks import MISMATCH, share_lost

BFLOAT16 = ("model={path: /model, dtype: bfloat16}", "rollout.max_new_tokens=512")


def notes(*overrides: str) -> list[Problem]:
    found = check_config(parse_config({}, overrides))
    return [problem for problem in found if "bfloat16" in problem.reason]


@pytest.mark.parametrize("preset", ["gspo", "gspo_token"])
def test_the_band_of_gspo_in_bfloat16_is_noted_with_what_it_costs(preset: str) -> None:
    (note,) = notes(*BFLOAT16, f"algorithm.preset={preset}")
    assert note.severity == "note"
    assert "[0.9997, 1.0004]" in note.reason
    assert "the mean of 512 tokens has a standard deviation of about 0.002" in note.reason
    assert "44 % of the tokens have no gradient" in note.reason
    assert "anchor to batch" in note.remedy


def test_float32_wide_bands_and_ratios_of_the_learner_alone_are_not_noted() -> None:
    assert not notes("model={path: /model}", "algorithm.preset=gspo")
    assert not notes(*BFLOAT16, "algorithm.preset=grpo")
    assert not notes(*BFLOAT16, "algorithm.preset=cispo")
    assert not notes(*BFLOAT16, "algorithm.preset=gspo", "algorithm.objective={kind: gspo, anchor: batch}")


def test_a_token_level_band_below_the_difference_of_a_token_is_noted() -> None:
    narrow = "algorithm.objective={kind: ppo_clip, clip_low: 0.02, clip_high: 0.02}"
    (note,) = notes(*BFLOAT16, "algorithm.preset=grpo", narrow)
    assert "the log ratio of a token has a standard deviation of about 0.05" in note.reason


@pytest.mark.parametrize("tokens", [1, 32, 512])
def test_the_share_without_a_gradient_is_that_of_simulated_ratios(tokens: int) -> None:
    generator = torch.Generator().manual_seed(0)
    noise = math.sqrt(MISMATCH / tokens)
    ratio = (noise * torch.randn(200_000, generator=generator)).exp()
    positive = torch.rand(200_000, generator=generator) < 0.5
    lost = torch.where(positive, ratio > 1.0004, ratio < 0.9997).float().mean()
    assert share_lost(0.9997, 1.0004, noise) == pytest.approx(float(lost), abs=0.005)
