"""The identities hold for every objective, and each of them fails for a function that breaks it."""

import pytest
import torch
from algorithms.loss_batches import OBJECTIVES as EXAMPLES
from slipstream.algorithms import group_advantages, policy_loss, resolve_loss
from slipstream.algorithms.identities import identities, why_unusable
from slipstream.algorithms.spec import OBJECTIVES, CustomObjective, Objective

OWN = "algorithms.own_functions"
ON_POLICY, MASKED, PACKING, SCALE, FAR = (identity.name for identity in identities(OBJECTIVES["pg"]()))


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
    found = []
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
        found.append((float(out.loss.detach()), gradient, out.metrics))
    assert found[0][0] == pytest.approx(found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1])
    for name in ("clip_fraction_low", "clip_fraction_high"):
        assert found[0][2][name] == found[1][2][name] > 0


def test_an_own_advantage_is_that_of_the_function_and_0_where_a_reward_was_withheld() -> None:
    rewards, groups = torch.tensor([1.0, 0.0, torch.nan, 3.0, 1.0]), torch.tensor([0, 0, 0, 1, 1])
    advantages = group_advantages(
        {"function": f"{OWN}:centred", "arguments": {"scale": 2.0}}, rewards, groups
    )
    assert advantages.tolist() == [1.0, -1.0, 0.0, 2.0, -2.0]
