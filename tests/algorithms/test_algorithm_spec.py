"""Specifications refuse invalid fields: constructed, parsed from a mapping, and in a pydantic model."""

import math
from typing import Annotated, Any

import pytest
import torch
from pydantic import Field, TypeAdapter, ValidationError
from slipstream.algorithms import PRESETS, describe, group_advantages, resolve_advantage, resolve_loss
from slipstream.algorithms.presets.preset import bound_of
from slipstream.algorithms.spec import (
    ADVANTAGES,
    AGGREGATIONS,
    OBJECTIVES,
    Advantage,
    Aggregation,
    Cispo,
    ClipCov,
    Dppo,
    GeometricRejection,
    Gmpo,
    Gopo,
    Grpo,
    Ipo,
    Is,
    KlCov,
    LossSpec,
    Mixed,
    Objective,
    OutlierTokens,
    Pg,
    PpoClip,
    Rloo,
    Sapo,
    Tis,
)

ADVANTAGE: TypeAdapter[Advantage] = TypeAdapter(Annotated[Advantage, Field(discriminator="kind")])
OBJECTIVE: TypeAdapter[Objective] = TypeAdapter(Annotated[Objective, Field(discriminator="kind")])


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_pydantic_reads_every_objective_by_its_kind(kind: str) -> None:
    assert OBJECTIVE.validate_python({"kind": kind}) == OBJECTIVES[kind]()


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_pydantic_reads_every_advantage_by_its_kind(kind: str) -> None:
    assert ADVANTAGE.validate_python({"kind": kind}) == ADVANTAGES[kind]()


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_pydantic_refuses_an_unknown_key_of_an_advantage(kind: str) -> None:
    with pytest.raises(ValidationError, match="nonsense"):
        ADVANTAGE.validate_python({"kind": kind, "nonsense": 1})


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_pydantic_refuses_an_unknown_key_of_an_objective(kind: str) -> None:
    with pytest.raises(ValidationError, match="nonsense"):
        OBJECTIVE.validate_python({"kind": kind, "nonsense": 1})


@pytest.mark.parametrize(
    "value",
    [
        {"kind": "ppo_clip", "clip_low": "wide"},
        {"kind": "ppo_clip", "clip_high": [0.2]},
        {"kind": "cispo", "clip_high": 0.0},
        {"kind": "cispo", "anchor": "old"},
        {"kind": "ppo"},
    ],
)
def test_pydantic_refuses_a_wrong_type_or_range(value: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        OBJECTIVE.validate_python(value)


def test_pydantic_refuses_an_unknown_aggregation_and_key() -> None:
    adapter = TypeAdapter(Aggregation)
    assert adapter.validate_python({"kind": "prompt_mean"}) == Aggregation(kind="prompt_mean")
    for value in ({"kind": "mean"}, {"kind": "token_mean", "norm": 3}, {"kind": "token_sum_norm"}):
        with pytest.raises(ValidationError):
            adapter.validate_python(value)


@pytest.mark.parametrize(
    ("spec", "arguments", "message"),
    [
        (Grpo, {"ddof": 2}, "grpo.ddof: got 2"),
        (Grpo, {"ddof": True}, "grpo.ddof: got True"),
        (Grpo, {"epsilon": 0.0}, "grpo.epsilon: got 0.0"),
        (Grpo, {"epsilon": "1"}, "grpo.epsilon: got '1'"),
        (Grpo, {"kind": "rloo"}, "grpo.kind: got 'rloo'"),
        (Rloo, {"scale": "batch"}, "rloo.scale: got 'batch', needs one of 'none', 'group'"),
        (Gopo, {"mapping": "normal"}, "gopo.mapping: got 'normal', needs one of 'linear', 'quantile'"),
        (PpoClip, {"clip_low": 1.5}, "clip_low.*got 1.5.*at most 1"),
        (PpoClip, {"clip_high": math.inf}, "clip_high.*got inf"),
        (PpoClip, {"anchor": "ref"}, "anchor: got 'ref'"),
        (Cispo, {"clip_high": -0.5}, "clip_high.*got -0.5"),
        (Cispo, {"mask_low": 1.5}, "cispo.mask_low.*got 1.5.*at most 1"),
        (Pg, {"allow_uncorrected": "yes"}, "allow_uncorrected: got 'yes'"),
        (Is, {"anchor": None}, "is.anchor: got None"),
        (Tis, {"cap": 0.9}, "tis.cap: got 0.9, needs 1 or more"),
        (GeometricRejection, {"cap": 0.9}, "geometric_rejection.cap.*got 0.9, needs 1 or more"),
        (OutlierTokens, {"low": 2.0}, "outlier_tokens.low.*got 2.0.*at most 1"),
        (OutlierTokens, {"high": 0.5}, "outlier_tokens.high: got 0.5, needs 1 or more"),
        (OutlierTokens, {"low": None, "high": None}, "drops nothing"),
        (ClipCov, {"share": 1.5}, "clip_cov.share: got 1.5.*at most 1"),
        (ClipCov, {"low": 5.0}, "clip_cov.high: got 5.0, needs more than low"),
        (KlCov, {"coefficient": 0.0}, "kl_cov.coefficient: got 0.0"),
        (Mixed, {"lam": 0.5, "prior": 2.0}, "mixed.lam: got 0.5 with prior 2.0.*one of the two"),
        (Aggregation, {"kind": "token_sum_norm"}, "max_tokens.*got None"),
        (Aggregation, {"kind": "token_mean", "max_tokens": 8}, "token_mean takes none"),
    ],
)
def test_a_field_out_of_range_is_named(spec: type, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spec(**arguments)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"preset": "gpro"}, "did you mean 'grpo'"),
        ({"preset": "grpo", "max_stalenes": 1}, "did you mean 'max_staleness'"),
        ({"preset": "kl_cov", "objective": {"kind": "pg"}}, "no anchor to hold tokens near; use is"),
        ({"preset": "grpo", "max_staleness": -1}, "max_staleness: got -1"),
        ({"preset": "dr_grpo"}, "max_tokens"),
        ({}, "needs preset or objective"),
        ({"objective": {"kind": "is"}}, "needs preset or aggregation"),
        ({"objective": {"kind": "cispoo"}, "aggregation": "token_mean"}, "did you mean 'cispo'"),
        ({"objective": {"kind": "is", "clip_low": 1}, "aggregation": "token_mean"}, "key 'clip_low'"),
        ({"objective": {"kind": "is"}, "aggregation": "token_meen"}, "aggregation.kind: got 'token_meen'"),
        ({"objective": {"kind": "pg"}, "aggregation": "token_mean", "max_staleness": 1}, "pg has no ratio"),
        (
            {"preset": "telescope_grpo", "correction": {"kind": "tis"}},
            "pg has no ratio.*use ppo_clip or cispo",
        ),
    ],
)
def test_a_loss_that_means_nothing_is_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve_loss(spec)


def test_a_preset_gives_its_parts_and_keys_beside_it_replace_them() -> None:
    spec = resolve_loss({"preset": "cispo", "aggregation": "prompt_mean", "max_staleness": 3})
    assert spec == LossSpec(objective=Cispo(), aggregation=Aggregation(kind="prompt_mean"), max_staleness=3)
    assert resolve_loss(spec) is spec
    assert resolve_advantage({"preset": "grpo"}) == Grpo()


@pytest.mark.parametrize("kind", ["dppo", "ipo"])
def test_an_objective_with_one_anchor_is_not_told_to_set_it(kind: str) -> None:
    with pytest.raises(ValueError, match="the rollout policy") as caught:
        resolve_loss(
            {"objective": {"kind": kind}, "aggregation": "token_mean", "correction": {"kind": "tis"}}
        )

    assert str(caught.value).endswith("; leave the correction out")


@pytest.mark.parametrize("cap", [1.0, 1e9])
def test_a_cap_of_one_or_more_leaves_on_policy_tokens_alone(cap: float) -> None:
    assert (Tis(cap=cap).cap, GeometricRejection(cap=cap).cap) == (cap, cap)


def test_gae_is_no_advantage_of_completions_and_the_function_is_named() -> None:
    with pytest.raises(ValueError, match=r"gae: one advantage a token.*use slipstream\.algorithms\.gae"):
        group_advantages({"preset": "ppo"}, torch.ones(2), torch.zeros(2, dtype=torch.long))


@pytest.mark.parametrize(
    ("objective", "bound"),
    [
        (PpoClip(), ("band of the ratio", "[0.8, 1.2]")),
        (Sapo(), ("band of the ratio", "none")),
        (Pg(), ("band of the ratio", "none")),
        (Gmpo(log_clip=None), ("band of the ratio", "none")),
        (Dppo(), ("trust region", "total variation at most 0.2, cap 5 on the ratio")),
        (
            Dppo(divergence="binary_kl", limit_low=0.1, cap=None),
            ("trust region", "KL at most 0.1 nats down, 0.05 nats up, no cap on the ratio"),
        ),
        (Ipo(), ("trust region", "total variation at most 0.1")),
    ],
)
def test_what_holds_the_policy_near_is_a_band_or_a_trust_region(
    objective: Objective, bound: tuple[str, str]
) -> None:
    assert bound_of(objective) == bound


def test_an_unknown_advantage_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"advantage\.kind: got 'dr-grpo'.*did you mean 'dr_grpo'"):
        resolve_advantage({"kind": "dr-grpo"})


def test_the_band_is_one_minus_low_to_one_plus_high_and_open_where_none() -> None:
    assert PpoClip(clip_low=0.25, clip_high=0.5).band == (0.75, 1.5)
    assert Cispo().band == (0.0, 5.0)
    assert Cispo(mask_low=0.2, mask_high=0.2).band == (0.0, 5.0)
    assert PpoClip(clip_high=None, clip_low=None).band == Is().band == Pg().band == (0.0, math.inf)


def test_tables_are_keyed_by_the_kind_of_what_they_hold() -> None:
    assert all(spec().kind == kind for table in (ADVANTAGES, OBJECTIVES) for kind, spec in table.items())


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_describes_its_band_weights_and_source(name: str) -> None:
    text, preset = describe(PRESETS[name]), PRESETS[name]
    for part in (
        ": ".join(bound_of(preset.objective)),
        AGGREGATIONS[preset.aggregation],
        preset.source,
        "J =",
        "A =",
    ):
        assert part in text


def test_top_k_belongs_to_the_divergences_over_top_tokens() -> None:
    assert [Dppo(divergence=name).resolved_top_k for name in ("binary_tv", "binary_kl")] == [0, 0]
    assert [Dppo(divergence=name).resolved_top_k for name in ("topk_tv", "topk_kl")] == [20, 20]
    assert Dppo(divergence="topk_kl", top_k=7).resolved_top_k == 7
    assert [objective.top_logprobs for objective in (Cispo(), Dppo(divergence="topk_tv"))] == [0, 20]
    with pytest.raises(ValueError, match=r"dppo\.top_k: got 7, and binary_tv looks at the sampled"):
        Dppo(top_k=7)
    with pytest.raises(ValueError, match=r"dppo\.top_k"):
        Dppo(divergence="topk_tv", top_k=0)
