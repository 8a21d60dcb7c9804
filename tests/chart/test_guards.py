"""Every combination that cannot work is refused before it is installed, with what to set instead."""

import re
from functools import cache
from typing import Any

import pytest
from chart.guard_cases import (
    ANYWHERE,
    BASE,
    CASES,
    JUDGE,
    KEYED,
    MODEL,
    MODELS,
    VERIFIER_IMAGE,
    mounted,
    rewarded,
    run,
)
from render import CHART, Release, RenderError, render_files

GUARDS = CHART / "templates" / "guards"


def laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Values as Helm merges them."""
    both = {key for key in above if isinstance(above[key], dict) and isinstance(below.get(key), dict)}
    return {**below, **above, **{key: laid_over(below[key], above[key]) for key in both}}


def problems(values: dict[str, Any], *, name: str = "demo") -> list[str]:
    """What the chart says against the values, a line for each problem."""
    try:
        render_files(Release(name=name, namespace="training", values=laid_over(BASE, values)))
    except RenderError as error:
        refusal = str(error)
    else:
        return []
    _, said, lines = refusal.partition("these values cannot work:\n")
    assert said, refusal
    return [line.strip().removeprefix("- ") for line in lines.splitlines() if line.strip()]


@cache
def problems_of_case(number: int) -> list[str]:
    """The problems of one of CASES."""
    return problems(CASES[number][0])


def messages() -> list[str]:
    """The longest fixed part of every message that a guard may write."""
    lines = [line for file in sorted(GUARDS.glob("*.tpl")) for line in file.read_text("utf-8").splitlines()]
    texts = [
        line for line in lines if re.match(r"[a-z]|\{\{ ", line) and ": " in line and " " in line.strip()
    ]
    return [max(re.split(r"\{\{.*?\}\}", text), key=len) for text in texts]


def test_the_values_that_the_cases_start_from_work() -> None:
    assert problems({}) == []


@pytest.mark.chart
@pytest.mark.parametrize("number", range(len(CASES)), ids=[text for _, text in CASES])
def test_what_cannot_work_is_refused_with_a_remedy(number: int) -> None:
    (problem,) = problems_of_case(number)
    assert CASES[number][1] in problem


@pytest.mark.parametrize(
    "values",
    [
        rewarded(MODEL, image=VERIFIER_IMAGE, models=MODELS, gpu={"count": 1}),
        {**rewarded(MODEL, models=MODELS), "image": {"repository": "slipstream/cpu"}},
        rewarded("{name: reward_model, path: /opt/reward}", image={"repository": "mine/with-a-model"}),
        rewarded(KEYED, judge={"existingSecret": "a", "peers": ANYWHERE}),
        {**rewarded(JUDGE), "network": {"policies": False}},
        rewarded("{name: r, kind: custom, function: 'mine:r'}", code={"mine.py": ""}),
        rewarded("{name: r, kind: custom, entry_point: mine}", image={"repository": "mine/verifier"}),
        rewarded("{name: code_tests}", runtimeClassName="kata"),
        rewarded(MODEL, image=VERIFIER_IMAGE, **mounted("/models/reward")),
        rewarded(MODEL, image=VERIFIER_IMAGE, **mounted("/models")),
    ],
    ids=str,
)  # fmt: skip
def test_rewards_that_have_what_they_need_are_not_refused(values: dict[str, Any]) -> None:
    assert problems(values) == []


@pytest.mark.parametrize("name", ["1run", "a.b"])
def test_a_release_that_cannot_name_a_service_is_refused(name: str) -> None:
    (problem,) = problems({}, name=name)
    assert "set fullnameOverride, or name the release otherwise" in problem


@pytest.mark.chart
def test_every_guard_has_a_case() -> None:
    found = [line for number in range(len(CASES)) for line in problems_of_case(number)]
    said = "\n".join([*found, *problems({}, name="1run")])
    assert len(messages()) > 40
    assert [message for message in messages() if message not in said] == []


def test_all_problems_are_shown_at_once() -> None:
    found = problems({**run("- 1"), "redis": {"auth": {"existingSecret": ""}}, "learner": {"nodes": 2}})
    assert [line.partition(" ")[0] for line in found] == [
        "run.config",
        "redis.auth.existingSecret",
        "learner.nodes",
    ]
