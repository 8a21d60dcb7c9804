"""Specifications refuse what they do not mean, alone, from a mapping, and inside a pydantic model."""

import math
from typing import Annotated, Any

import pytest
from pydantic import Field, TypeAdapter, ValidationError
from slipstream.algorithms import PRESETS, describe, resolve_advantage, resolve_loss
from slipstream.algorithms.spec import (
    ADVANTAGES,
    AGGREGATIONS,
    OBJECTIVES,
    Advantage,
    Aggregation,
    Cispo,
    Grpo,
    Is,
    LossSpec,
    Objective,
    Pg,
    PpoClip,
    band,
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
        (PpoClip, {"clip_low": 1.5}, "clip_low.*got 1.5.*at most 1"),
        (PpoClip, {"clip_high": math.inf}, "clip_high.*got inf"),
        (PpoClip, {"anchor": "ref"}, "anchor: got 'ref'"),
        (Cispo, {"clip_high": -0.5}, "clip_high.*got -0.5"),
        (Pg, {"allow_uncorrected": "yes"}, "allow_uncorrected: got 'yes'"),
        (Is, {"anchor": None}, "is.anchor: got None"),
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
        ({"preset": "grpo", "max_staleness": -1}, "max_staleness: got -1"),
        ({"preset": "dr_grpo"}, "max_tokens"),
        ({}, "needs preset or objective"),
        ({"objective": {"kind": "is"}}, "needs preset or aggregation"),
        ({"objective": {"kind": "cispoo"}, "aggregation": "token_mean"}, "did you mean 'cispo'"),
        ({"objective": {"kind": "is", "clip_low": 1}, "aggregation": "token_mean"}, "key 'clip_low'"),
        ({"objective": {"kind": "is"}, "aggregation": "token_meen"}, "aggregation.kind: got 'token_meen'"),
        ({"objective": {"kind": "pg"}, "aggregation": "token_mean", "max_staleness": 1}, "pg has no ratio"),
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


def test_an_unknown_advantage_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"advantage\.kind: got 'dr-grpo'.*did you mean 'dr_grpo'"):
        resolve_advantage({"kind": "dr-grpo"})


def test_the_band_is_one_minus_low_to_one_plus_high_and_open_where_none() -> None:
    assert band(PpoClip(clip_low=0.25, clip_high=0.5)) == (0.75, 1.5)
    assert band(Cispo()) == (0.0, 5.0)
    assert band(PpoClip(clip_high=None, clip_low=None)) == band(Is()) == band(Pg()) == (0.0, math.inf)


def test_tables_are_keyed_by_the_kind_of_what_they_hold() -> None:
    assert all(spec().kind == kind for table in (ADVANTAGES, OBJECTIVES) for kind, spec in table.items())


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_describes_its_band_weights_and_source(name: str) -> None:
    text, preset = describe(PRESETS[name]), PRESETS[name]
    low, high = band(preset.objective)
    for part in (f"[{low:g}, {high:g}]", AGGREGATIONS[preset.aggregation], preset.source, "J =", "A ="):
        assert part in text
