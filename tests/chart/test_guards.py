"""The chart refuses values that cannot work, and says what to set instead."""

import re
from functools import cache
from typing import Any

import pytest
from chart.guard_cases import (
    ANYWHERE,
    BASE,
    CASES,
    DISTILS,
    DOWNLOAD,
    HUB,
    JUDGE,
    KEYED,
    MODEL,
    MODELS,
    PROMETHEUS,
    REACHED,
    TAUGHT,
    VERIFIER_IMAGE,
    download,
    mounted,
    rewarded,
    run,
)
from render import CHART, Release, RenderError, render_files
from slipstream.algorithms.spec.shaping import AdaptiveGroup
from slipstream.config import RunConfig

GUARDS = CHART / "templates" / "guards"


def laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge values as helm does."""
    both = {key for key in above if isinstance(above[key], dict) and isinstance(below.get(key), dict)}
    return {**below, **above, **{key: laid_over(below[key], above[key]) for key in both}}


def problems(values: dict[str, Any], *, name: str = "demo") -> list[str]:
    """Return the problems that the chart reports about the values."""
    try:
        render_files(Release(name=name, namespace="training", values=laid_over(BASE, values)))
    except RenderError as error:
        refusal = str(error)
    else:
        return []
    _, heading, lines = refusal.partition("these values cannot work:\n")
    assert heading, refusal
    return [line.strip().removeprefix("- ") for line in lines.splitlines() if line.strip()]


@cache
def problems_of_case(number: int) -> list[str]:
    """Return the problems of one of CASES."""
    return problems(CASES[number][0])


def all_messages() -> list[str]:
    """Return the messages of all guards."""
    return [text for file in sorted(GUARDS.glob("*.tpl")) for text in messages(file.read_text("utf-8"))]


def messages(template: str) -> list[str]:
    """Return the longest constant part of every message of a template."""
    texts = [
        line
        for line in template.splitlines()
        if re.match(r"[a-z]|\{\{ ", line) and ": " in line and " " in line.strip()
    ]
    return [max(re.split(r"\{\{.*?\}\}", text), key=len) for text in texts]


def test_the_values_below_the_cases_are_valid() -> None:
    assert problems({}) == []


@pytest.mark.chart
@pytest.mark.parametrize("number", range(len(CASES)), ids=[text for _, text in CASES])
def test_values_that_cannot_work_are_refused_with_a_remedy(number: int) -> None:
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


@pytest.mark.parametrize("values", REACHED, ids=str)
def test_tool_servers_that_actors_can_start_or_reach_are_not_refused(values: dict[str, Any]) -> None:
    assert problems(values) == []


@pytest.mark.parametrize(
    ("endpoint", "network"),
    [
        ("http://[2001:db8::1]", {}),
        ("http://172.32.0.1", {}),
        ("https://10.example", {}),
        ("http://10.0.0.1", {"peers": ANYWHERE}),
        ("http://10.0.0.1", {"except": ["192.168.0.0/16"]}),
        ("http://10.0.0.1", {"cidrs": ["0.0.0.0/0", "10.0.0.0/24"]}),
    ],
    ids=str,
)  # fmt: skip
def test_a_mirror_that_the_policies_allow_is_not_refused(endpoint: str, network: dict[str, Any]) -> None:
    values = {"model": download(endpoint=endpoint), "network": {"egress": {"huggingface": True, **network}}}
    assert problems({**run("seed: 1"), **values}) == []


def test_a_variable_may_be_set_in_pods_in_which_the_chart_does_not_set_it() -> None:
    address = {"extraEnv": [{"name": "VLLM_HOST_IP", "value": "10.0.0.1"}]}
    assert problems({"rollout": {"defaults": address}, "learner": address}) == []


@pytest.mark.parametrize(
    ("component", "volumes"),
    [
        ("learner", ["home", "models", "checkpoints", "shared-memory", "data"]),
        ("verifier", ["home", "models", "reward-code"]),
        ("replay", ["home", "data"]),
        ("redis", ["users", "data"]),
    ],
)
def test_a_sidecar_may_mount_every_volume_of_the_chart_that_its_pod_has(
    component: str, volumes: list[str]
) -> None:
    mounts = [{"name": name, "mountPath": f"/of/{name}"} for name in volumes]
    values = {
        "model": DOWNLOAD,
        "network": HUB,
        "data": {"existingClaim": "prompts"},
        "verifier": {"models": MODELS, "code": {"a.py": ""}},
    }
    both = laid_over(
        values, {component: {"sidecars": [{"name": "a", "image": "a:1", "volumeMounts": mounts}]}}
    )
    assert problems({**run("seed: 1"), **both}) == []


@pytest.mark.parametrize(
    ("more", "scaling"),
    [
        ("", {}),
        ("rollout: {group_size: 1}\n", {"maxReplicas": 1}),
        ("rollout: {group_size: 1}\n", {"minReplicas": 4}),
        ("rollout: {group_size: 1}\n", {"targetCompletions": 2}),
        ("rollout: {group_size: 1}\n", {"enabled": False}),
    ],
    ids=str,
)  # fmt: skip
def test_a_teacher_whose_autoscaler_reaches_its_maximum_is_not_refused(
    more: str, scaling: dict[str, Any]
) -> None:
    teacher = {"models": MODELS, "autoscaling": {"enabled": True, **scaling}}
    assert problems({**run(TAUGHT + more), "teacher": teacher, "autoscaling": PROMETHEUS}) == []


def test_adaptive_groups_may_have_more_completions_than_the_size_of_a_group() -> None:
    text = f"{DISTILS[:-2]}, shaping: {{adaptive_group: {{}}}}}}\nteacher: {{path: /models/teacher}}\n"
    scaling = {"enabled": True, "targetCompletions": 80}
    values = {"teacher": {"models": MODELS, "autoscaling": scaling}, "autoscaling": PROMETHEUS}
    assert problems({**run(text), **values}) == []
    assert len(problems({**run(TAUGHT), **values})) == 1


def test_for_a_key_that_the_run_omits_the_chart_uses_its_default() -> None:
    files = (GUARDS / "_teacher.tpl", CHART / "templates" / "rollout" / "_pools.tpl")
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    taken = dict(re.findall(r'run\.value" \(list [$.] "([\w.]+)" (\d+)\)', text))
    config = RunConfig()
    assert {key: int(number) for key, number in taken.items()} == {
        "teacher.requests": config.teacher.requests,
        "learner.groups_per_step": config.learner.groups_per_step,
        "rollout.group_size": config.rollout.group_size,
        "rollout.start_timeout_seconds": config.rollout.start_timeout_seconds,
        "algorithm.shaping.adaptive_group.largest": AdaptiveGroup().largest,
    }


@pytest.mark.parametrize("name", ["1run", "a.b"])
def test_a_release_that_cannot_name_a_service_is_refused(name: str) -> None:
    (problem,) = problems({}, name=name)
    assert "set fullnameOverride, or name the release otherwise" in problem


@pytest.mark.chart
def test_every_guard_has_a_case() -> None:
    reported = [line for number in range(len(CASES)) for line in problems_of_case(number)]
    text = "\n".join([*reported, *problems({}, name="1run")])
    assert len(all_messages()) > 40
    assert [message for message in all_messages() if message not in text] == []


def test_all_problems_are_shown_at_once() -> None:
    reported = problems({**run("- 1"), "redis": {"auth": {"existingSecret": ""}}, "learner": {"nodes": 2}})
    assert [line.partition(" ")[0] for line in reported] == [
        "run.config",
        "redis.auth.existingSecret",
        "learner.nodes",
    ]
