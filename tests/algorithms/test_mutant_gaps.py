"""One or two tokens worked by hand, with numbers for which a wrong formula gives another result."""

import math
from typing import Any

import pytest
import torch
from algorithms.loss_batches import make_batch, one_token, packed, run, spec_of
from algorithms.loss_reference import Sequence, Token
from slipstream.algorithms import PolicyLoss, policy_loss, reward_penalty
from slipstream.algorithms.corrections import m2po_bound
from slipstream.algorithms.layout import PART
from slipstream.algorithms.spec import Dppo, Entropy, Gmpo, Gspo, Is, M2po, Objective, Pg, PpoClip, Vespo


def weight(objective: Objective, logprob: float, anchor: float, advantage: float = 1.0) -> float:
    """Return g / A of a lone token: its gradient is -g."""
    return -float(run(spec_of(objective), one_token(logprob, anchor, advantage)).gradient) / advantage


@pytest.mark.parametrize(
    "objective", [Is(), PpoClip(clip_high=None), Gspo(clip_high=None), Gmpo(log_clip=None)]
)
def test_a_ratio_that_the_clamp_holds_has_no_gradient(objective: Objective) -> None:
    # z = -1 + 26 = 25 is past 20: exp(clamp z) no longer moves
    assert weight(objective, -1.0, -26.0) == 0.0
    assert weight(objective, -1.0, -3.0) == pytest.approx(math.exp(2))


def test_the_cap_of_dppo_holds_a_rare_token_that_its_mask_keeps() -> None:
    # p = 8 q = 0.008: |p - q| = 0.007 is within 0.2, and the ratio 8 above the cap 5
    q = math.log(0.001)
    assert weight(Dppo(), q + math.log(8), q) == pytest.approx(5.0)
    assert weight(Dppo(cap=None), q + math.log(8), q) == pytest.approx(8.0)


@pytest.mark.parametrize(("limit", "expected"), [(0.2, 2.5), (0.19, 0.0)])
def test_the_divergence_of_dppo_is_that_of_mu_from_pi(limit: float, expected: float) -> None:
    # q = 0.2, p = 0.5: KL(q || p) = 0.2 ln 0.4 + 0.8 ln 1.6 = 0.1927; KL(p || q) would be 0.2231
    objective = Dppo(divergence="binary_kl", limit_high=limit)
    assert weight(objective, math.log(0.5), math.log(0.2)) == pytest.approx(expected)


@pytest.mark.parametrize(("limit_low", "expected"), [(0.4, 0.4), (0.2, 0.0)])
def test_the_lower_limit_of_dppo_is_for_tokens_that_became_less_likely(
    limit_low: float, expected: float
) -> None:
    # q = 0.5, p = 0.2, A < 0: |p - q| = 0.3
    objective = Dppo(limit_low=limit_low, limit_high=0.6 - limit_low)
    assert weight(objective, math.log(0.2), math.log(0.5), -1.0) == pytest.approx(expected)


def test_the_product_of_vespo_is_bounded() -> None:
    result = run(spec_of(Vespo()), one_token(-1.0, -31.0, 1.0))
    assert result.out.metrics["max_ratio"] == pytest.approx(math.exp(20))
    assert result.out.metrics["damped_fraction"] == 1.0


def test_one_minus_ref_weighs_the_advantage_by_what_the_reference_leaves() -> None:
    # pi_ref = 0.2: A = 3 becomes 3 * 0.8 = 2.4
    token = Token(logprob=-1.0, rollout=-1.0, old=-1.0, ref=math.log(0.2), advantage=3.0)
    gradient = run(spec_of(Pg(), token_weight="one_minus_ref"), [Sequence((token,))]).gradient
    assert float(gradient) == pytest.approx(-2.4)


def test_an_over_age_token_has_no_entropy_bonus_and_stays_in_its_normaliser() -> None:
    # two tokens, one of them 5 versions old: the bonus is 0.5 * 1.0 / 2
    batch = make_batch(0, sequences=1)
    token = batch[0].tokens[0]
    tensors = packed([Sequence((token, token))])
    tensors |= {"mask": torch.tensor([1, 1]), "staleness": torch.tensor([0, 5])}
    entropy = torch.tensor([1.0, 7.0], dtype=torch.float64, requires_grad=True)
    spec = spec_of(PpoClip(), entropy=Entropy(coefficient=0.5), max_staleness=2)
    with_bonus = policy_loss(spec, **tensors, entropy=entropy)  # type: ignore[arg-type]
    without = policy_loss(spec_of(PpoClip(), max_staleness=2), **tensors)  # type: ignore[arg-type]
    with_bonus.loss.backward()
    assert float((with_bonus.loss - without.loss).detach()) == pytest.approx(-0.25)
    assert entropy.grad is not None
    assert entropy.grad.tolist() == [-0.25, 0.0]


NO_TERMS = {"aggregation": {"kind": "token_mean"}}
RATIOS_T = torch.tensor([0.5, 2.0, 8.0, 1.0, 3.0], dtype=torch.float64)


def five_tokens(spec: dict[str, Any], **arguments: Any) -> PolicyLoss:
    """r = 1/2, 2, 8, 1 with A = -1, 1, -1, 1 in sequences of their own, and one token under the mask."""
    batch_arguments = {
        "logprobs": RATIOS_T.log(),
        "rollout_logprobs": torch.zeros(5, dtype=torch.float64),
        "advantages": torch.tensor([-1.0, 1.0, -1.0, 1.0, 1.0]),
        "mask": torch.tensor([1, 1, 1, 1, 0]),
        "sequence_ids": torch.arange(5),
    }
    return policy_loss(NO_TERMS | spec, **(batch_arguments | arguments))


def test_an_infinite_logprob_shows_though_the_clamp_hides_it() -> None:
    logprobs = torch.tensor([-math.inf, math.log(2), math.log(8), 0.0, 0.0], dtype=torch.float64)
    assert math.isnan(float(five_tokens({"objective": {"kind": "ppo_clip"}}, logprobs=logprobs).loss))


def test_a_correction_weighs_the_objective_and_not_the_kl() -> None:
    # r = pi / prox = 2, A = 1, c = min(prox / mu = 2, 1.5); k3 of d = log 2: 1/2 - 1 + log 2
    one = torch.zeros(1, dtype=torch.float64)
    loss = policy_loss(
        {
            "objective": {"kind": "is", "anchor": "batch"},
            "aggregation": "token_mean",
            "correction": {"kind": "tis", "cap": 1.5},
        }
        | {"kl": {"coefficient": 1.0, "estimator": "k3"}},
        logprobs=one + math.log(2),
        rollout_logprobs=one - math.log(2),
        old_logprobs=one,
        ref_logprobs=one,
        advantages=torch.ones(1),
        mask=torch.ones(1),
        sequence_ids=torch.zeros(1, dtype=torch.int64),
    ).loss
    assert float(loss) == pytest.approx(-1.5 * 2 + 0.5 - 1 + math.log(2))


def test_the_bound_of_m2po_is_of_the_whole_microbatch() -> None:
    # half of the tokens have z = 1, half z = 0.1, in parts of their own: the mean of z^2 is 0.505, below 0.52
    size = PART
    z_T = torch.cat([torch.ones(size), torch.full((size,), 0.1)]).double()
    correction = {"kind": "m2po", "threshold": 0.52, "clip_low": 0.01, "clip_high": 0.01}
    out = policy_loss(
        NO_TERMS | {"objective": {"kind": "pg"}, "correction": correction},
        logprobs=z_T,
        rollout_logprobs=torch.zeros_like(z_T),
        advantages=torch.ones(2),
        mask=torch.ones_like(z_T),
        sequence_ids=torch.arange(2).repeat_interleave(size),
    )
    assert out.metrics["dropped_fraction"] == 0.0


def test_half_precision_is_widened_before_anything_is_computed() -> None:
    half_T = torch.tensor([-1.0, -0.3, -2.7, -0.9, -1.1], dtype=torch.bfloat16)
    narrow = five_tokens({"objective": {"kind": "is"}}, logprobs=half_T)
    wide = five_tokens({"objective": {"kind": "is"}}, logprobs=half_T.float())
    assert float(narrow.loss) == float(wide.loss)
    assert narrow.metrics == wide.metrics


def test_the_trimmed_bound_of_m2po_takes_ties_together() -> None:
    # z^2 = 0.01, 0.09, 0.09: the means are 0.01, 0.05, 0.063; 0.055 has room for one of the equal two only
    bound = m2po_bound(M2po(scope="all", threshold=0.055), torch.tensor([0.3, 0.1, 0.3]))
    assert bound == pytest.approx(0.1)


def test_the_penalty_of_a_reward_is_a_constant() -> None:
    rollout = torch.tensor([-1.0], requires_grad=True)
    assert not reward_penalty(1.0, rollout, torch.tensor([-2.0]), torch.ones(1)).requires_grad


def test_metrics_leave_out_masked_and_over_age_tokens() -> None:
    # the 8 is over age: r = 1/2, 2, 1 are left of the four in the mask; the band clips two
    out = five_tokens(
        {"objective": {"kind": "ppo_clip"}, "max_staleness": 2}, staleness=torch.tensor([0, 1, 3, 2, 0])
    ).metrics
    assert (out["tokens"], out["trained_tokens"], out["over_age_fraction"]) == (4.0, 3.0, 0.25)
    assert out["mean_ratio"] == pytest.approx(3.5 / 3)
    assert (out["clip_fraction_low"], out["clip_fraction_high"]) == pytest.approx((1 / 3, 1 / 3))


def test_the_effective_weight_has_the_correction_in_it() -> None:
    # r = 1 to the old logprobs; c = min(prox / mu, 1.5) is 1/2, 1.5, 1.5, 1
    out = five_tokens(
        {"objective": {"kind": "is", "anchor": "batch"}, "correction": {"kind": "tis", "cap": 1.5}},
        old_logprobs=RATIOS_T.log(),
    ).metrics
    assert out["mean_effective_weight"] == pytest.approx(4.5 / 4)


def test_each_quantile_is_the_ratio_at_which_its_share_of_the_tokens_is_reached() -> None:
    # of 1/2, 1, 2, 8: a quarter of the tokens reach 1/2, half of them 1; bins are 1/64 wide in the logarithm
    out = five_tokens({"objective": {"kind": "is"}}).metrics
    quantiles = [out[f"{name}_ratio"] for name in ("p1", "p10", "p50", "p90", "p99")]
    assert quantiles == pytest.approx([0.5, 0.5, 1.0, 8.0, 8.0], rel=1 / 128)
