"""Notes on bands that tokens leave by bfloat16 rounding or by age, with the share of lost gradients."""

import math
import re
from pathlib import Path

import pytest
import torch
from slipstream.algorithms.spec.correction import Level
from slipstream.config import parse_config
from slipstream.config.checks import Problem, check_config
from slipstream.config.precision_checks import MISMATCH, Band, outside

BFLOAT16 = ("model={path: /model, dtype: bfloat16}", "rollout.max_new_tokens=512")
FRESH = ("staleness={pipeline_depth: 0, max_staleness: 0}",)
BATCH_ANCHOR = ("algorithm.preset=decoupled_ppo",)
BENCHMARKS = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text(encoding="utf-8")


def notes(*overrides: str, about: str = "bfloat16") -> list[Problem]:
    all_problems = check_config(parse_config({}, overrides))
    return [problem for problem in all_problems if about in problem.reason]


@pytest.mark.parametrize("preset", ["gspo", "gspo_token", "luspo"])
def test_the_band_of_gspo_in_bfloat16_is_noted_with_what_it_costs(preset: str) -> None:
    (note,) = notes(*BFLOAT16, f"algorithm.preset={preset}", about="band")
    assert (note.key, note.severity) == ("algorithm.objective", "note")
    assert "[0.9997, 1.0004]" in note.reason
    assert "the mean log ratio of 512 tokens has a mean of -0.0012 and a standard deviation of 0.0022" in (
        note.reason
    )
    assert "23 % of the tokens with a positive and 66 % of those with a negative" in note.reason
    assert "preset decoupled_gspo" in note.remedy


def test_the_remedy_that_the_note_names_leaves_nothing_to_note() -> None:
    remedy = (
        "algorithm.objective={kind: gspo, anchor: batch}",
        "algorithm.correction={kind: tis, level: geometric}",
        "learner.minibatches=2",
    )
    for model in (BFLOAT16, ("model={path: /model}",)):
        assert notes(*model, "algorithm.preset=gspo", about="band")
        assert not notes(*model, "algorithm.preset=luspo", *remedy, about="band")
        assert not notes(*model, "algorithm.preset=decoupled_gspo", *remedy[2:], about="band")


def test_float32_wide_bands_and_ratios_of_the_learner_alone_are_not_noted() -> None:
    assert not notes("model={path: /model}", "algorithm.preset=gspo")
    assert not notes(*BFLOAT16, "algorithm.preset=grpo")
    assert not notes(*BFLOAT16, "algorithm.preset=cispo")
    assert not notes(*BFLOAT16, "algorithm.preset=icepop")
    assert not notes(*BFLOAT16, "algorithm.preset=gspo", "algorithm.objective={kind: gspo, anchor: batch}")


def test_a_token_level_band_below_the_difference_of_a_token_is_noted() -> None:
    narrow = "algorithm.objective={kind: ppo_clip, clip_low: 0.02, clip_high: 0.02}"
    (note,) = notes(*BFLOAT16, "algorithm.preset=grpo", narrow)
    assert "the log ratio of a token has a mean of -0.0012 and a standard deviation of 0.049" in note.reason


def test_the_mask_of_cispo_is_noted_as_the_same_band_of_ppo() -> None:
    mask = "algorithm.objective={kind: cispo, mask_low: 0.02, mask_high: 0.02}"
    clip = "algorithm.objective={kind: ppo_clip, clip_low: 0.02, clip_high: 0.02}"
    (masked,), (clipped,) = notes(*BFLOAT16, mask), notes(*BFLOAT16, "algorithm.preset=grpo", clip)
    assert masked.reason.partition("has the band")[2] == clipped.reason.partition("has the band")[2]
    assert "mask_low" in masked.remedy


def test_a_band_for_outlier_tokens_counts_that_one_token_drops_its_sequence() -> None:
    (note,) = notes(*BFLOAT16, "algorithm.correction={kind: outlier_tokens, low: 0.9, high: 1.1}")
    one = sum(outside(0.9, 1.1, -MISMATCH / 2, MISMATCH**0.5))
    assert f"{100 * (1 - (1 - one) ** 512):.0f} % of the tokens have no gradient" in note.reason
    assert not notes(*BFLOAT16, "algorithm.correction={kind: outlier_tokens}")


def test_a_band_that_drops_whatever_the_sign_counts_both_ends_for_either() -> None:
    ends = "clip_low: 0.02, clip_high: 0.02"
    (clipped,) = notes(*BFLOAT16, "algorithm.preset=grpo", f"algorithm.objective={{kind: ppo_clip, {ends}}}")
    (dropped,) = notes(*BFLOAT16, f"algorithm.objective={{kind: rollout_is, {ends}}}")
    by_sign = [int(share) for share in re.findall(r"(\d+) %", clipped.reason)]
    (either,) = (int(share) for share in re.findall(r"(\d+) %", dropped.reason))
    assert either == pytest.approx(sum(by_sign), abs=1)


@pytest.mark.parametrize(
    ("correction", "reason"),
    [
        ("{kind: geometric_rejection}", "[0.999, 1.001] .* so that 69 % of the tokens have no gradient"),
        ("{kind: mis, level: geometric, low: 0.999, high: 1.001}", "so that 69 % of the tokens"),
        ("{kind: mis, level: sequence}", "the sum of the log ratios of 512 tokens .* 59 % of the tokens"),
        ("{kind: opsm, delta: 0.0001}", "0 % of the tokens with a positive and 69 % of those with a neg"),
    ],
)
def test_a_correction_that_drops_for_rounding_alone_is_noted(correction: str, reason: str) -> None:
    (note,) = notes(*BFLOAT16, *BATCH_ANCHOR, f"algorithm.correction={correction}")
    assert note.key.startswith("algorithm.correction")
    assert re.search(reason, note.reason)


@pytest.mark.parametrize(
    "correction",
    [
        "{kind: geometric_rejection, low: 0.99, high: 1.01}",
        "{kind: mis}",
        "{kind: icepop}",
        "{kind: opsm}",
        "{kind: tis, level: sequence}",
    ],
)
def test_a_correction_that_rounding_hardly_touches_is_not_noted(correction: str) -> None:
    assert not notes(*BFLOAT16, *BATCH_ANCHOR, f"algorithm.correction={correction}")


def test_the_band_of_gspo_is_noted_in_float32_too_where_stale_tokens_train() -> None:
    (note,) = notes("algorithm.preset=gspo", about="two thirds")
    assert (note.key, note.severity) == ("algorithm.objective", "note")
    assert "decoupled_gspo" in note.remedy
    assert not notes("algorithm.preset=gspo", *FRESH, about="two thirds")
    wide = "algorithm.objective={kind: gspo, clip_low: 0.01, clip_high: 0.01}"
    assert not notes("algorithm.preset=gspo", wide, about="two thirds")
    assert notes(
        "algorithm.preset=gspo", "algorithm.objective={kind: gspo, clip_low: null}", about="two thirds"
    )


def test_two_thirds_is_what_the_benchmark_says() -> None:
    (row,) = re.findall(r"^\| `gspo` \|.*%.*", BENCHMARKS, flags=re.MULTILINE)
    shares = [float(share) for share in re.findall(r"([\d.]+)%", row)]
    assert len(shares) == 4
    assert all(60 < share < 73 for share in shares[1:])


@pytest.mark.parametrize(("level", "tokens"), [("token", 1), ("geometric", 128), ("sequence", 128)])
def test_the_shares_are_those_of_two_policies_that_round_differently(level: Level, tokens: int) -> None:
    """The engine samples from one rounding of the logits, and the learner looks up the other."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1000, 64, generator=generator, dtype=torch.float64)

    def rounded() -> torch.Tensor:
        noise = torch.randn(1000, 64, generator=generator, dtype=torch.float64)
        return (logits + math.sqrt(MISMATCH / 2) * noise).log_softmax(1)

    engine, learner = rounded(), rounded()
    answers = 4_000
    where = torch.randint(0, 1000, (answers, tokens), generator=generator)
    draws = torch.multinomial(engine.exp()[where.flatten()], 1, generator=generator).view(answers, tokens)
    z = learner[where, draws] - engine[where, draws]
    ratio = (z.sum(1) if level == "sequence" else z.mean(1)).exp()
    low, high = (0.8, 1.3) if level == "sequence" else (0.98, 1.01) if level == "token" else (0.999, 1.001)
    band = Band(name="x", key="x", low=low, high=high, level=level, remedy="x")
    for power, expected in ((1, -MISMATCH / 2), (2, MISMATCH)):
        moment = (engine.exp() * (learner - engine) ** power).sum(1).mean()
        assert float(moment) == pytest.approx(expected, rel=0.05)
    shares = outside(low, high, *band.log_ratio(tokens))
    assert shares == pytest.approx(
        [float((ratio < low).double().mean()), float((ratio > high).double().mean())], abs=0.03
    )
    assert band.lost(tokens) == (sum(shares), sum(shares))
