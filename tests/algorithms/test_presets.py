"""Presets equal the papers' recipes, and a key beside a preset replaces exactly one part of it."""

import re
from dataclasses import replace
from typing import Any

import pytest
from slipstream.algorithms import PRESETS, resolve_advantage, resolve_loss
from slipstream.algorithms.presets.preset import bound_of
from slipstream.algorithms.spec import (
    Aggregation,
    BatchScaled,
    Cispo,
    DriftPenalty,
    DynamicSampling,
    IcePop,
    Is,
    Kl,
    LossSpec,
    M2po,
    Shaping,
    SoftOverlong,
    Tis,
)

INF = float("inf")
E04 = (0.670320046, 1.491824698)  # e^-0.4, e^0.4

# name: advantage, objective, band of the ratio, aggregation; bands worked by hand as [1 - low, 1 + high].
TABLE = {
    "ppo": ("gae", "ppo_clip", (0.8, 1.2), "token_mean"),
    "grpo": ("grpo", "ppo_clip", (0.8, 1.2), "seq_mean_token_mean"),
    "dapo": ("grpo", "ppo_clip", (0.8, 1.28), "token_mean"),
    "dr_grpo": ("dr_grpo", "ppo_clip", (0.8, 1.2), "token_sum_norm"),
    "rloo": ("rloo", "ppo_clip", (0.8, 1.2), "seq_mean_token_sum"),
    "reinforce_pp": ("reinforce_pp", "ppo_clip", (0.8, 1.2), "token_mean"),
    "cispo": ("batch_scaled", "cispo", (0, 5), "token_mean"),
    "scalerl": ("batch_scaled", "cispo", (0, 5), "prompt_mean"),
    "gspo": ("grpo", "gspo", (0.9997, 1.0004), "seq_mean_token_mean"),
    "gspo_token": ("grpo", "gspo_token", (0.9997, 1.0004), "seq_mean_token_mean"),
    "decoupled_gspo": ("grpo", "gspo", (0.9997, 1.0004), "seq_mean_token_mean"),
    "sapo": ("grpo", "sapo", (0, INF), "seq_mean_token_mean"),
    "gmpo": ("grpo", "gmpo", E04, "seq_mean_token_mean"),
    "rspo": ("grpo", "rspo", E04, "seq_mean_token_mean"),
    "vespo": ("grpo", "vespo", (0, INF), "token_mean"),
    "dppo_tv": ("dr_grpo", "dppo", (0, 5), "token_mean"),
    "dppo_kl": ("dr_grpo", "dppo", (0, 5), "token_mean"),
    "2grpo": ("grpo", "ppo_clip", (0.8, 1.2), "seq_mean_token_mean"),
    "gopo": ("gopo", "ppo_clip", (0.8, 1.28), "token_mean"),
    "clip_cov": ("grpo", "ppo_clip", (0.0, 2.0), "token_mean"),
    "kl_cov": ("grpo", "is", (0.0, INF), "token_mean"),
    "gdpo": ("gdpo", "ppo_clip", (0.8, 1.28), "token_mean"),
    "r1": ("grpo", "ppo_clip", (0, 11), "seq_mean_token_mean"),
    "luspo": ("grpo", "gspo", (0.9997, 1.0004), "seq_len_weighted"),
    "lite_ppo": ("batch_scaled", "ppo_clip", (0.8, 1.2), "token_mean"),
    "ipo": ("dr_grpo", "ipo", (0, INF), "token_mean"),
    "dro": ("dr_grpo", "pg", (0, INF), "seq_mean_token_sum"),
    "kimi_k1_5": ("dr_grpo", "pg", (0, INF), "seq_mean_token_sum"),
    "telescope_grpo": ("grpo", "pg", (0, INF), "token_mean"),
    "telescope_rloo": ("rloo", "pg", (0, INF), "token_mean"),
    "telescope_reinforce_pp": ("reinforce_pp", "pg", (0, INF), "token_mean"),
    "telescope_dr_grpo": ("dr_grpo", "pg", (0, INF), "token_mean"),
    "telescope_cispo": ("grpo", "cispo", (0.6, 1.5), "token_mean"),
    "telescope_gspo": ("grpo", "gspo", (0.6, 1.5), "seq_mean_token_mean"),
    "telescope_sapo": ("grpo", "sapo", (0, INF), "token_mean"),
}
WITHOUT_ID = {"ipo", *(name for name in PRESETS if name.startswith("telescope_"))}


def loss_of(name: str, **beside: Any) -> LossSpec:
    budget = {"max_tokens": 16} if PRESETS[name].aggregation == "token_sum_norm" else {}
    return resolve_loss({"preset": name, **budget, **beside})


@pytest.mark.parametrize("name", TABLE)
def test_a_preset_is_what_its_source_says(name: str) -> None:
    advantage, objective, ends, aggregation = TABLE[name]
    preset = PRESETS[name]
    assert (preset.advantage.kind, preset.objective.kind, preset.aggregation) == (
        advantage,
        objective,
        aggregation,
    )
    assert preset.objective.band == pytest.approx(ends)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_valid_loss_of_exactly_its_parts(name: str) -> None:
    preset, loss = PRESETS[name], loss_of(name)
    budget = 16 if preset.aggregation == "token_sum_norm" else None
    assert loss == LossSpec(
        objective=preset.objective,
        corrections=preset.corrections,
        kl=preset.kl,
        drift_penalty=preset.drift_penalty,
        entropy=preset.entropy,
        top_entropy=preset.top_entropy,
        clip_cov=preset.clip_cov,
        kl_cov=preset.kl_cov,
        aggregation=Aggregation(kind=preset.aggregation, max_tokens=budget),
    )
    assert resolve_advantage({"preset": name}) == preset.advantage


def test_only_four_presets_take_the_ratio_to_the_learner() -> None:
    anchored = {name for name, preset in PRESETS.items() if preset.objective.anchor == "batch"}
    assert anchored == {"rspo", "decoupled_gspo", "decoupled_ppo", "icepop"}


def test_corrections_and_regularisers_are_where_the_sources_have_them() -> None:
    assert {name: preset.corrections for name, preset in PRESETS.items() if preset.corrections} == {
        "decoupled_gspo": (Tis(level="geometric", cap=2.0),),
        "decoupled_ppo": (Tis(level="token", cap=2.0),),
        "icepop": (IcePop(low=0.5, high=5.0),),
        "m2po": (M2po(threshold=0.04, scope="harmful"),),
    }
    assert {name: p.kl.coefficient for name, p in PRESETS.items() if p.kl} == {
        "deepseek_math": 0.04,
        "r1": 0.001,
    }
    assert {name: p.drift_penalty for name, p in PRESETS.items() if p.drift_penalty} == {
        "dppo_drift": DriftPenalty(coefficient=1e-3),
        "ipo": DriftPenalty(coefficient=1e-3),
        "dro": DriftPenalty(coefficient=0.025),
        "kimi_k1_5": DriftPenalty(coefficient=0.025, level="sequence"),
    }
    assert PRESETS["m2po"].objective == Is()


def test_groups_of_equal_rewards_are_dropped_by_dapo_cispo_and_scalerl() -> None:
    filtered = {name for name, preset in PRESETS.items() if preset.shaping.dynamic_sampling}
    assert filtered == {"dapo", "cispo", "scalerl"}
    assert PRESETS["dapo"].shaping == Shaping(
        dynamic_sampling=DynamicSampling(), soft_overlong=SoftOverlong()
    )


def test_lite_ppo_divides_by_the_deviation_of_the_rewards_as_its_authors_do() -> None:
    assert PRESETS["lite_ppo"].advantage == BatchScaled(std_of="raw")


def test_two_grpo_is_groups_of_two_with_the_deviation_of_the_population() -> None:
    assert {name: p.group_size for name, p in PRESETS.items() if p.group_size} == {"2grpo": 2}
    assert PRESETS["2grpo"].advantage == replace(PRESETS["grpo"].advantage, ddof=0)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_names_its_source(name: str) -> None:
    source = PRESETS[name].source
    assert "https://" in source if name in WITHOUT_ID else re.search(r"arXiv:\d{4}\.\d{5}", source)


def test_a_key_beside_a_preset_replaces_that_part_only() -> None:
    plain, changed = loss_of("r1"), loss_of("r1", kl={"coefficient": 0.5, "estimator": "k2"})
    assert changed == replace(plain, kl=Kl(coefficient=0.5, estimator="k2"))


@pytest.mark.parametrize("key", ["correction", "corrections"])
def test_none_switches_a_part_off(key: str) -> None:
    assert loss_of("decoupled_ppo", **{key: None}).corrections == ()
    assert loss_of("r1", kl=None).kl is None
    assert loss_of("dppo_drift", drift_penalty=None).drift_penalty is None


@pytest.mark.parametrize("key", ["correction", "corrections"])
def test_one_correction_and_a_list_of_one_are_the_same(key: str) -> None:
    one, many = {"kind": "mis"}, [{"kind": "mis"}]
    assert loss_of("decoupled_ppo", **{key: one}) == loss_of("decoupled_ppo", **{key: many})


def test_the_budget_may_stand_beside_the_aggregation_or_in_it() -> None:
    beside = loss_of("grpo", aggregation="token_sum_norm", max_tokens=64)
    inside = loss_of("grpo", aggregation={"kind": "token_sum_norm", "max_tokens": 64})
    assert beside == inside
    with pytest.raises(ValueError, match=r"max_tokens: got 8, and the aggregation says 64"):
        loss_of("grpo", aggregation={"kind": "token_sum_norm", "max_tokens": 64}, max_tokens=8)


DUAL = "dual_clip belongs to is, ppo_clip, gspo"


@pytest.mark.parametrize(
    ("beside", "message"),
    [
        *(({"objective": {"kind": kind, "dual_clip": 3.0}}, DUAL) for kind in ("cispo", "sapo", "gmpo")),
        *(({"objective": {"kind": kind, "dual_clip": 3.0}}, DUAL) for kind in ("rspo", "vespo", "dppo")),
        ({"objective": {"kind": "sapo", "clip_low": 0.2}}, "sapo has a soft gate"),
        ({"objective": {"kind": "gmpo", "clip_high": 0.2}}, "by log_clip"),
        ({"objective": {"kind": "dppo", "anchor": "batch"}}, "always the rollout policy"),
        ({"objective": {"kind": "ppo_clip", "epsilon": 0.2}}, "written clip_low and clip_high"),
        ({"objective": "gspo"}, "objective: got 'gspo', needs a mapping"),
        ({"objective": None}, "objective: got None"),
        ({"correction": {"kind": "tiss"}}, "correction.kind: got 'tiss'.*did you mean 'tis'"),
        ({"correction": {"kind": "tis"}}, "counted twice"),
        ({"correction": None, "corrections": None}, "needs one of the two"),
        ({"kl": {}}, "kl.coefficient: got nothing"),
        ({"kl": 0.1}, "kl: got 0.1, needs a mapping"),
        ({"kl": {"coefficient": 0.1, "estimator": "k1"}}, "expected gradient is 0"),
        ({"entropy": {"coeficient": 0.1}}, "did you mean 'coefficient'"),
        ({"token_weight": "two"}, "token_weight: got 'two'"),
        ({"max_tokens": 8}, "seq_mean_token_mean takes none"),
        ({"aggregation": "seq_len_weighted"}, "use seq_mean_token_sum"),
    ],
)
def test_what_is_known_to_be_wrong_is_refused_with_its_reason(beside: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loss_of("grpo", **beside)


def test_swapped_letters_find_the_right_preset() -> None:
    with pytest.raises(ValueError, match="did you mean 'gspo'"):
        resolve_loss({"preset": "gsop"})


def test_the_mask_of_cispo_is_shown_beside_its_band() -> None:
    assert bound_of(Cispo()) == ("band of the ratio", "[0, 5]")
    _, text = bound_of(Cispo(mask_low=0.2, mask_high=0.25))
    assert text == "[0, 5], without gradient where A < 0 below 0.8 and where A > 0 above 1.25"
