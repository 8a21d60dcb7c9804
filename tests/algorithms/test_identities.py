"""The identities hold for every objective, and each of them fails for a function that breaks it."""

from typing import Any

import pytest
import torch
from algorithms.loss_batches import OBJECTIVES as EXAMPLES
from slipstream.algorithms import group_advantages, policy_loss, resolve_loss
from slipstream.algorithms.identities import identities
from slipstream.algorithms.spec import ADVANTAGES, OBJECTIVES, CustomObjective, Objective
from slipstream.algorithms.trial import try_section
from slipstream.algorithms.trial_report import report_from_json

OWN = "algorithms.own_functions"
ON_POLICY, NEAR, AGAINST, MASKED, PACKING, SCALE, FAR = (
    identity.name for identity in identities(OBJECTIVES["pg"]())
)


def why_unusable(section: dict[str, Any], *, axis: str) -> str:
    unusable = try_section(section, axis=axis).unusable
    return unusable.reason if unusable else ""


def failures(objective: Objective) -> dict[str, str]:
    return {identity.name: identity.failure for identity in identities(objective) if identity.failure}


@pytest.mark.parametrize("objective", EXAMPLES, ids=repr)
def test_every_objective_satisfies_every_identity(objective: Objective) -> None:
    assert failures(objective) == {}


@pytest.mark.parametrize("function", ["ppo", "sequence_ratio"])
@pytest.mark.parametrize("anchor", ["rollout", "batch"])
def test_a_right_function_of_one_s_own_satisfies_every_identity(function: str, anchor: str) -> None:
    assert failures(CustomObjective(function=f"{OWN}:{function}", anchor=anchor)) == {}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("function", "broken"),
    [
        ("half", {ON_POLICY}),
        ("mean_of_the_row", {ON_POLICY, MASKED, PACKING}),
        ("squared_advantage", {ON_POLICY, SCALE}),
        ("unbounded", {FAR}),
        ("reversed_sign", {ON_POLICY, AGAINST}),
        ("reversed_off_policy", {AGAINST}),
        ("jumps_at_one", {NEAR}),
        ("with_a_penalty", {SCALE}),
    ],
)
def test_a_wrong_function_fails_the_identities_that_it_breaks(function: str, broken: set[str]) -> None:
    assert set(failures(CustomObjective(function=f"{OWN}:{function}"))) == broken


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("summed", r"returned a loss of shape \[\], needs \[21\], one for each token"),
        ("constant", "returned a loss without a gradient"),
        ("number", r"returned float, needs a tensor \[T\]"),
        ("broken", "KeyError: 'clip'"),
        ("nowhere", "has no function `nowhere`"),
    ],
)
def test_an_objective_that_cannot_train_is_refused_with_the_reason(function: str, reason: str) -> None:
    import re

    unusable = why_unusable({"function": f"{OWN}:{function}"}, axis="objective")
    assert re.search(reason, unusable)


@pytest.mark.parametrize(
    ("function", "reason"),
    [("short", "returned [3], needs a tensor [4]"), ("infinite", "not finite for a scored completion")],
)
def test_an_advantage_that_cannot_train_is_refused_with_the_reason(function: str, reason: str) -> None:
    assert reason in why_unusable({"function": f"{OWN}:{function}"}, axis="advantage")


def test_only_a_gradient_against_the_advantage_is_an_error() -> None:
    severities = {identity.name: identity.severity for identity in identities(OBJECTIVES["pg"]())}
    assert {name for name, severity in severities.items() if severity == "error"} == {AGAINST}


@pytest.mark.parametrize(
    ("section", "key", "reason", "remedy"),
    [
        ({"function": "nowhere_at_all:x"}, "function", "No module named 'nowhere_at_all'", "PYTHONPATH"),
        ({"function": f"{OWN}:NOT_A_FUNCTION"}, "function", "but a value of the type float", "called as"),
        ({"function": f"{OWN}:without_tokens"}, "function", "takes no tokens", "called as function(tokens"),
        ({"function": f"{OWN}:needs_a_width"}, "arguments", "missing a required argument: 'width'", "width"),
        ({"function": f"{OWN}:broken"}, "function", "(own_functions.py, line ", "called as"),
        ({"kind": "is", "clip_low": 0.1}, "objective is", "got the key 'clip_low'", "use ppo_clip"),
    ],
)
def test_an_objective_that_cannot_be_called_is_refused_with_key_reason_and_remedy(
    section: dict[str, Any], key: str, reason: str, remedy: str
) -> None:
    unusable = try_section(section, axis="objective").unusable
    assert unusable is not None
    assert unusable.key == key
    assert reason in unusable.reason
    assert remedy in unusable.remedy
    assert "\n" not in unusable.reason + unusable.remedy


def test_an_advantage_that_reverses_the_order_of_the_rewards_is_named() -> None:
    (identity,) = try_section({"function": f"{OWN}:reversed_order"}, axis="advantage").identities
    assert (
        "the reward 1 has the advantage -1, and the lower reward -1 of the same group has 1"
        in identity.failure
    )


@pytest.mark.parametrize("kind", [name for name, cls in ADVANTAGES.items() if not cls.by_token])
def test_no_advantage_reverses_the_order_of_the_rewards(kind: str) -> None:
    if kind in ("ema", "mixed"):
        pytest.skip("it reads baselines from history, which a trial does not have")
    report = try_section({"kind": kind}, axis="advantage")
    assert (report.unusable, [i for i in report.identities if i.failure]) == (None, [])


def test_without_time_the_identities_are_named_as_untested() -> None:
    report = try_section({"function": f"{OWN}:ppo"}, axis="objective", seconds=-1.0)
    assert (report.identities, len(report.untested)) == ((), 7)
    assert report_from_json(report.to_json()) == report


def test_an_unknown_argument_of_a_function_is_refused() -> None:
    section = {"function": f"{OWN}:ppo", "arguments": {"clipp": 0.2}}
    assert "unexpected keyword argument 'clipp'" in why_unusable(section, axis="objective")


def test_a_right_function_is_usable() -> None:
    assert why_unusable({"function": f"{OWN}:ppo", "arguments": {"clip": 0.1}}, axis="objective") == ""
    assert why_unusable({"function": f"{OWN}:centred"}, axis="advantage") == ""


def test_an_own_ppo_clip_has_the_gradient_and_the_metrics_of_the_built_in_one() -> None:
    torch.manual_seed(1)
    logprobs = (-torch.rand(40, dtype=torch.float64) - 0.5).requires_grad_()
    own = {"function": f"{OWN}:ppo"}
    results = []
    for objective in ({"kind": "ppo_clip"}, own):
        out = policy_loss(
            resolve_loss({"objective": objective, "aggregation": "token_mean"}),
            logprobs=logprobs,
            rollout_logprobs=logprobs.detach() + 0.3 * torch.linspace(-1, 1, 40),
            advantages=torch.tensor([1.0, -2.0]),
            mask=torch.arange(40) % 5 > 0,
            sequence_ids=torch.arange(40) // 20,
        )
        (gradient,) = torch.autograd.grad(out.loss, logprobs)
        results.append((float(out.loss.detach()), gradient, out.metrics))
    assert results[0][0] == pytest.approx(results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1])
    for name in ("clip_fraction_low", "clip_fraction_high"):
        assert results[0][2][name] == results[1][2][name] > 0


def test_an_own_advantage_is_that_of_the_function_and_0_where_a_reward_was_withheld() -> None:
    rewards, groups = torch.tensor([1.0, 0.0, torch.nan, 3.0, 1.0]), torch.tensor([0, 0, 0, 1, 1])
    advantages = group_advantages(
        {"function": f"{OWN}:centred", "arguments": {"scale": 2.0}}, rewards, groups
    )
    assert advantages.tolist() == [1.0, -1.0, 0.0, 2.0, -2.0]
