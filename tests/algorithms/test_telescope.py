"""Telescope's keys have the meaning that Telescope's documentation states."""

import math
from typing import Any

import pytest
import torch
from slipstream.algorithms import PRESETS, policy_loss, resolve_advantage, resolve_loss
from slipstream.algorithms.spec import (
    Advantage,
    Cispo,
    DrGrpo,
    Grpo,
    Gspo,
    Objective,
    Pg,
    PpoClip,
    ReinforcePp,
    Rloo,
    Sapo,
)
from slipstream.algorithms.telescope import translate

PLAIN = Pg(allow_uncorrected=True)
GROUP = Grpo(epsilon=1e-4)
CLIP = {"use_ppo_clip": True, "clip_low": 0.4, "clip_high": 0.5, "ppo_clip_ref_logprobs": "rollout"}

# The snippets of the pages as they stand there, and what each is in our parts.
SNIPPETS: list[tuple[dict[str, Any], Advantage, Objective, str, int | None, int | None]] = [
    ({"algorithm": "grpo"}, GROUP, PLAIN, "token_mean", None, None),
    (
        {"algorithm": "grpo", "group_size": 8, "advantage_norm": "group"},
        GROUP,
        PLAIN,
        "token_mean",
        8,
        None,
    ),
    (
        {"algorithm": "grpo", "group_size": 8, "advantage_norm": "batch"},
        ReinforcePp(epsilon=1e-4),
        PLAIN,
        "token_mean",
        8,
        None,
    ),
    ({"algorithm": "rloo", "group_size": 8}, Rloo(), PLAIN, "token_mean", 8, None),
    (
        {"algorithm": "reinforce_pp", "advantage_norm": "batch"},
        ReinforcePp(epsilon=1e-4),
        PLAIN,
        "token_mean",
        None,
        None,
    ),
    (
        {"algorithm": "dr_grpo", "dr_grpo_loss_agg_mode": "token_mean"},
        DrGrpo(),
        PLAIN,
        "token_mean",
        None,
        None,
    ),
    (
        {"algorithm": "dr_grpo", "dr_grpo_loss_agg_mode": "token_sum_norm"},
        DrGrpo(),
        PLAIN,
        "token_sum_norm",
        None,
        None,
    ),
    (
        {"algorithm": "cispo", "clip_low": 0.4, "clip_high": 0.5},
        GROUP,
        Cispo(clip_low=0.4, clip_high=0.5),
        "token_mean",
        None,
        None,
    ),
    (
        {"algorithm": "gspo", "clip_low": 0.4, "clip_high": 0.5},
        GROUP,
        Gspo(clip_low=0.4, clip_high=0.5),
        "seq_mean_token_mean",
        None,
        None,
    ),
    (
        {"algorithm": "sapo", "sapo_tau_pos": 1.0, "sapo_tau_neg": 1.05},
        GROUP,
        Sapo(tau_pos=1.0, tau_neg=1.05),
        "token_mean",
        None,
        None,
    ),
    (CLIP, GROUP, PpoClip(clip_low=0.4, clip_high=0.5), "token_mean", None, None),
    (
        CLIP | {"ppo_clip_ref_logprobs": "batch"},
        GROUP,
        PpoClip(anchor="batch", clip_low=0.4, clip_high=0.5),
        "token_mean",
        None,
        None,
    ),
    (
        {"number_of_minibatches": 4, "use_ppo_clip": True},
        GROUP,
        PpoClip(clip_low=0.4, clip_high=0.5),
        "token_mean",
        None,
        4,
    ),
]


@pytest.mark.parametrize(("keys", "advantage", "objective", "aggregation", "size", "minibatches"), SNIPPETS)
def test_every_snippet_of_the_pages_is_read_as_it_stands(
    keys: dict[str, Any],
    advantage: Advantage,
    objective: Objective,
    aggregation: str,
    size: int | None,
    minibatches: int | None,
) -> None:
    translation = translate(keys)

    axes = dict(translation.algorithm)
    assert resolve_advantage(axes.pop("advantage")) == advantage
    budget = {"max_tokens": 64} if aggregation == "token_sum_norm" else {}
    loss = resolve_loss(axes | budget)
    assert (loss.objective, loss.aggregation.kind) == (objective, aggregation)
    assert (translation.group_size, translation.minibatches) == (size, minibatches)
    assert all(any(note.startswith(f"{key}: ") for note in translation.notes) for key in keys)


@pytest.mark.parametrize("name", ["rloo", "dr_grpo", "reinforce_pp"])
def test_the_clip_can_be_layered_on_every_algorithm_without_a_ratio(name: str) -> None:
    translation = translate({"algorithm": name, **CLIP})

    assert resolve_loss({"objective": translation.algorithm["objective"], "aggregation": "token_mean"})
    assert translation.algorithm["objective"]["kind"] == "ppo_clip"


@pytest.mark.parametrize("name", ["grpo", "rloo", "reinforce_pp", "dr_grpo", "cispo", "gspo", "sapo"])
def test_an_algorithm_alone_is_the_preset_of_its_name(name: str) -> None:
    axes, preset = dict(translate({"algorithm": name}).algorithm), PRESETS[f"telescope_{name}"]

    assert resolve_advantage(axes.pop("advantage")) == preset.advantage
    assert resolve_loss(axes) == resolve_loss({"preset": f"telescope_{name}"})


@pytest.mark.parametrize("spec", [{"preset": "telescope_gspo"}, translate({"algorithm": "gspo"}).algorithm])
def test_gspo_weighs_a_short_and_a_long_sequence_the_same_as_telescopes_code(spec: dict[str, Any]) -> None:
    # lengths 1 and 100, 101 tokens; A = 1, -1; mean log ratios .1 and -.2, both inside [0.6, 1.5]
    z_T = torch.cat([torch.full((1,), 0.1), torch.linspace(-0.4, 0.0, 100)]).double()
    advantages_T = torch.cat([torch.full((1,), 1.0), torch.full((100,), -1.0)]).double()
    ids_T = torch.tensor([0] + [1] * 100)
    rollout_T = torch.full((101,), -1.0).double()
    ours_T = (rollout_T + z_T).requires_grad_()
    theirs_T = (rollout_T + z_T).requires_grad_()

    loss = policy_loss(
        {key: value for key, value in spec.items() if key != "advantage"},
        logprobs=ours_T,
        rollout_logprobs=rollout_T,
        advantages=torch.tensor([1.0, -1.0]).double(),
        mask=torch.ones(101),
        sequence_ids=ids_T,
    ).loss
    loss.backward()
    mean_T = torch.cat([(theirs_T - rollout_T)[ids_T == i].mean().expand(n) for i, n in ((0, 1), (1, 100))])
    scaled_T = theirs_T / torch.tensor([1.0] + [100.0] * 100).double()
    straight_through_T = scaled_T - scaled_T.detach() + mean_T.detach()
    (-(straight_through_T.exp() * advantages_T).sum() / 101).backward()

    assert ours_T.grad is not None
    assert theirs_T.grad is not None
    torch.testing.assert_close(ours_T.grad * 2 / 101, theirs_T.grad)
    assert ours_T.grad[1:].sum() / ours_T.grad[0] == pytest.approx(-math.exp(-0.3))


def test_translation_leaves_its_input_alone() -> None:
    keys = {"algorithm": "gspo", "clip_low": 0.4}
    assert translate(keys) == translate(keys)
    assert keys == {"algorithm": "gspo", "clip_low": 0.4}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"algoritm": "grpo"}, "did you mean 'algorithm'"),
        ({"algorithm": "ppo"}, "telescope.algorithm: got 'ppo'"),
        ({"algorithm": "cispo", "use_ppo_clip": True}, "bounds its ratio itself"),
        ({"algorithm": "gspo", "use_ppo_clip": True}, "bounds its ratio itself"),
        ({"algorithm": "sapo", "use_ppo_clip": True}, "bounds its ratio itself"),
        ({"algorithm": "rloo", "advantage_norm": "batch"}, "compares within the group"),
        ({"algorithm": "dr_grpo", "advantage_norm": "batch"}, "compares within the group"),
        ({"algorithm": "reinforce_pp", "advantage_norm": "group"}, "normalisation over the batch"),
        ({"clip_low": 0.4}, "grpo does not read it; set use_ppo_clip: true"),
        ({"algorithm": "sapo", "clip_high": 0.4}, "sapo_tau_pos"),
        ({"algorithm": "rloo", "ppo_clip_ref_logprobs": "batch"}, "rloo does not read it"),
        ({"algorithm": "gspo", "sapo_tau_pos": 1.0}, "set algorithm: sapo"),
        ({"dr_grpo_loss_agg_mode": "token_mean"}, "set algorithm: dr_grpo"),
        ({"use_ppo_clip": True, "clip_low": 1.5}, "telescope.clip_low: got 1.5"),
        ({"use_ppo_clip": "yes"}, "telescope.use_ppo_clip: got 'yes'"),
        ({"number_of_minibatches": 0}, "telescope.number_of_minibatches: got 0"),
        ({"group_size": 2.5}, "telescope.group_size: got 2.5"),
        ({"advantage_norm": "none"}, "telescope.advantage_norm: got 'none'"),
    ],
)
def test_what_telescope_refuses_or_nobody_reads_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        translate(keys)
