"""On-policy distillation: numbers by hand, exact enumeration over a vocabulary, and refused combinations."""

import math
from typing import Any

import pytest
import torch
from algorithms.loss_batches import spec_of
from slipstream.algorithms import LossSpec, PolicyLoss, Taught, TeacherTop, policy_loss, resolve_loss
from slipstream.algorithms.distillation import divergence_term
from slipstream.algorithms.spec import (
    Cispo,
    Distillation,
    Gmpo,
    Gspo,
    Is,
    Kl,
    M2po,
    Mis,
    Objective,
    Pg,
    PpoClip,
    Rspo,
    Sapo,
    Vespo,
)
from torch import Tensor

LN2 = math.log(2)
POLICY = (1 / 8, 1 / 2, 1 / 8, 1 / 4)
TEACHER = (1 / 2, 1 / 4, 1 / 8, 1 / 8)
KINDS: list[Any] = ["reverse", "forward", "mixed"]


def log(probabilities: tuple[float, ...]) -> Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


def taught_of(policy_TV: Tensor, teacher_TV: Tensor, sampled_T: Tensor, *, k: int) -> Taught:
    """What a teacher with these logprobs over a vocabulary says, its k likeliest tokens among it."""
    own_T = teacher_TV.gather(1, sampled_T[:, None]).squeeze(1)
    if not k:
        return Taught(logprobs_T=own_T)
    top_TK, ids_TK = teacher_TV.topk(k, dim=1)
    return Taught(
        logprobs_T=own_T,
        top=TeacherTop(
            logprobs_TK=policy_TV.gather(1, ids_TK),
            teacher_logprobs_TK=top_TK,
            sampled_TK=ids_TK == sampled_T[:, None],
        ),
    )


def loss_of(
    spec: LossSpec, policy_TV: Tensor, teacher_TV: Tensor, sampled_T: Tensor, **arguments: Any
) -> PolicyLoss:
    """The loss of tokens that are one sequence, without advantage unless one is given."""
    assert spec.distillation is not None
    tokens = sampled_T.shape[0]
    logprobs = policy_TV.gather(1, sampled_T[:, None]).squeeze(1)
    batch_arguments = {
        "rollout_logprobs": logprobs.detach(),
        "old_logprobs": logprobs.detach(),
        "ref_logprobs": logprobs.detach() - 0.3,
        "advantages": torch.zeros(1, dtype=torch.float64),
        "mask": torch.ones(tokens, dtype=torch.long),
        "sequence_ids": torch.zeros(tokens, dtype=torch.long),
        "taught": taught_of(policy_TV, teacher_TV, sampled_T, k=spec.distillation.resolved_top_k),
    }
    return policy_loss(spec, logprobs=logprobs, **(batch_arguments | arguments))


def random_logits(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("options", "value", "slopes"),
    [
        # cells: the teacher's tokens 0 and 1, and the sampled token 2; the rest is token 3, 1/4 against 1/8.
        # reverse: 1/8 ln 1/4 + 1/2 ln 2 + 1/8 ln 1 + 1/4 ln 2 = ln 2 / 2
        # by l_c: q_c ((l_c - t_c) - ln 2): 1/8 (-2 - 1), 1/2 (1 - 1), 1/8 (0 - 1), times ln 2
        ({"kind": "reverse"}, 0.5 * LN2, (-0.375 * LN2, 0.0, -0.125 * LN2)),
        # forward: 1/2 ln 4 + 1/4 ln 1/2 + 1/8 ln 1 + 1/8 ln 1/2 = 5/8 ln 2
        # by l_c: -p_c + (1/8) q_c / (1/4): -1/2 + 1/16, -1/4 + 1/4, -1/8 + 1/16
        ({"kind": "forward"}, 0.625 * LN2, (-0.4375, 0.0, -0.0625)),
        # a quarter of forward and three quarters of reverse
        (
            {"kind": "mixed", "forward_share": 0.25},
            0.53125 * LN2,
            (-0.109375 - 0.28125 * LN2, 0.0, -0.015625 - 0.09375 * LN2),
        ),
    ],
    ids=KINDS,
)
def test_a_divergence_adds_its_value_and_its_slopes(
    options: dict[str, Any], value: float, slopes: tuple[float, ...]
) -> None:
    sampled_T = torch.tensor([2])
    taught = taught_of(log(POLICY)[None], log(TEACHER)[None], sampled_T, k=2)
    assert taught.top is not None
    logprobs = log(POLICY)[sampled_T].requires_grad_()
    top_TK = taught.top.logprobs_TK.clone().requires_grad_()
    top = TeacherTop(
        logprobs_TK=top_TK,
        teacher_logprobs_TK=taught.top.teacher_logprobs_TK,
        sampled_TK=taught.top.sampled_TK,
    )
    out = policy_loss(
        spec_of(Is(), distillation=Distillation(coefficient=3.0, top_k=2, **options)),
        logprobs=logprobs,
        rollout_logprobs=logprobs.detach(),
        advantages=torch.ones(1, dtype=torch.float64),  # without effect: reward_weight is 0
        mask=torch.ones(1, dtype=torch.long),
        sequence_ids=torch.zeros(1, dtype=torch.long),
        taught=Taught(logprobs_T=taught.logprobs_T, top=top),
    )
    out.loss.backward()
    assert top_TK.grad is not None
    assert logprobs.grad is not None
    assert float(out.loss.detach()) == pytest.approx(3 * value, abs=1e-12)
    gradients = [*top_TK.grad[0].tolist(), *logprobs.grad.tolist()]
    assert gradients == pytest.approx([3 * slope for slope in slopes], abs=1e-12)


def test_a_sampled_token_among_the_teachers_is_counted_once() -> None:
    # cells: tokens 0 and 1, of which 1 was sampled; the rest is 3/8 against 1/4
    spec = spec_of(Is(), distillation=Distillation(kind="reverse", top_k=2))
    out = loss_of(spec, log(POLICY)[None], log(TEACHER)[None], torch.tensor([1]))
    by_hand = 1 / 8 * math.log(1 / 4) + 1 / 2 * math.log(2) + 3 / 8 * math.log(3 / 2)
    assert float(out.loss) == pytest.approx(by_hand, abs=1e-12)


def test_the_teachers_advantage_is_its_logprob_minus_the_policys_without_gradient() -> None:
    # A = 0.5 * 2 + 3 (ln 1/8 - ln 1/4) = 1 - 3 ln 2 at r = 1: value -A, slope -A; nothing through l inside A
    spec = spec_of(Is(), distillation=Distillation(coefficient=3.0, reward_weight=0.5))
    logprob = log((1 / 4,)).requires_grad_()
    out = policy_loss(
        spec,
        logprobs=logprob,
        rollout_logprobs=logprob.detach(),
        advantages=torch.tensor([2.0], dtype=torch.float64),
        mask=torch.ones(1, dtype=torch.long),
        sequence_ids=torch.zeros(1, dtype=torch.long),
        taught=Taught(logprobs_T=log((1 / 8,))),
    )
    out.loss.backward()
    assert logprob.grad is not None
    assert float(out.loss.detach()) == pytest.approx(3 * LN2 - 1)
    assert float(logprob.grad) == pytest.approx(3 * LN2 - 1)


def test_the_teachers_advantage_is_bounded_by_20_nats() -> None:
    spec = spec_of(Is(), distillation=Distillation())
    policy_TV, teacher_TV = log((1 / 2, 1 / 2))[None], torch.tensor([[0.0, -math.inf]], dtype=torch.float64)
    out = loss_of(spec, policy_TV, teacher_TV, torch.tensor([1]))
    assert float(out.loss) == pytest.approx(20.0)


@pytest.mark.parametrize("objective", [Is(), PpoClip(clip_low=None, clip_high=None)], ids=repr)
def test_the_expected_gradient_of_the_advantage_is_that_of_the_reverse_divergence(
    objective: Objective,
) -> None:
    # every token of the vocabulary, weighed by the policy that sampled, which is not the current one
    logits_V = random_logits(1, 7).requires_grad_()
    sampler_V, teacher_V = random_logits(2, 7).log_softmax(0), random_logits(3, 7).log_softmax(0)
    spec = spec_of(objective, "seq_mean_token_sum", distillation=Distillation())
    total = torch.zeros((), dtype=torch.float64)
    for token in range(7):
        policy_TV = logits_V.log_softmax(0)[None]
        rollout = sampler_V[token : token + 1]
        out = loss_of(spec, policy_TV, teacher_V[None], torch.tensor([token]), rollout_logprobs=rollout)
        total = total + sampler_V[token].exp() * out.loss
    (found_V,) = torch.autograd.grad(total, logits_V)
    policy_V = logits_V.log_softmax(0)
    (exact_V,) = torch.autograd.grad((policy_V.exp() * (policy_V - teacher_V)).sum(), logits_V)
    torch.testing.assert_close(found_V, exact_V, rtol=1e-10, atol=1e-12)


def exact(kind: str, policy_V: Tensor, teacher_V: Tensor, share: float) -> Tensor:
    """The divergence between two distributions, with autograd."""
    reverse = (policy_V.exp() * (policy_V - teacher_V)).sum()
    forward = (teacher_V.exp() * (teacher_V - policy_V)).sum()
    return {"reverse": reverse, "forward": forward, "mixed": share * forward + (1 - share) * reverse}[kind]


def cells(logprobs_V: Tensor, ids: list[int]) -> Tensor:
    """The distribution over some tokens, and all others together."""
    others = [token for token in range(len(logprobs_V)) if token not in ids]
    return torch.cat([logprobs_V[ids], logprobs_V[others].logsumexp(0)[None]])


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_a_divergence_is_exact_over_its_cells_in_value_and_gradient(kind: Any, k: int) -> None:
    logits_TV = random_logits(4, 5, 7).requires_grad_()
    teacher_TV = random_logits(5, 5, 7).log_softmax(1)
    sampled_T = torch.tensor([0, 1, 2, 3, 4])
    share = 0.3 if kind == "mixed" else None
    spec = spec_of(Is(), distillation=Distillation(kind=kind, top_k=k, forward_share=share))
    out = loss_of(spec, logits_TV.log_softmax(1), teacher_TV, sampled_T)
    (found_TV,) = torch.autograd.grad(out.loss, logits_TV)
    wanted = torch.zeros((), dtype=torch.float64)
    for t, sampled in enumerate(sampled_T.tolist()):
        ids = sorted({*teacher_TV[t].topk(k).indices.tolist(), sampled})
        policy_V = logits_TV[t].log_softmax(0)
        wanted = wanted + exact(kind, cells(policy_V, ids), cells(teacher_TV[t], ids), share or 0.0) / 5
    (exact_TV,) = torch.autograd.grad(wanted, logits_TV)
    assert float(out.loss.detach()) == pytest.approx(float(wanted.detach()), abs=1e-12)
    torch.testing.assert_close(found_TV, exact_TV, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_with_every_token_it_is_the_divergence_over_the_vocabulary(kind: Any) -> None:
    logits_V, teacher_V = random_logits(6, 7).requires_grad_(), random_logits(7, 7).log_softmax(0)
    spec = spec_of(Is(), distillation=Distillation(kind=kind, top_k=7))
    out = loss_of(spec, logits_V.log_softmax(0)[None], teacher_V[None], torch.tensor([3]))
    (found_V,) = torch.autograd.grad(out.loss, logits_V)
    wanted = exact(kind, logits_V.log_softmax(0), teacher_V, 0.5)
    (exact_V,) = torch.autograd.grad(wanted, logits_V)
    assert float(out.loss.detach()) == pytest.approx(float(wanted.detach()), abs=1e-10)
    torch.testing.assert_close(found_V, exact_V, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_that_equals_its_teacher_has_no_divergence_and_no_gradient(kind: Any) -> None:
    logits_TV = random_logits(8, 3, 9).requires_grad_()
    policy_TV = logits_TV.log_softmax(1)
    spec = spec_of(Is(), distillation=Distillation(kind=kind, top_k=4))
    out = loss_of(spec, policy_TV, policy_TV.detach(), torch.tensor([0, 5, 8]))
    (found_TV,) = torch.autograd.grad(out.loss, logits_TV)
    assert abs(float(out.loss.detach())) < 1e-12
    assert float(found_TV.abs().max()) < 1e-12


def test_fewer_cells_never_have_a_larger_divergence() -> None:
    policy_TV, teacher_TV = random_logits(9, 1, 12).log_softmax(1), random_logits(10, 1, 12).log_softmax(1)
    for kind in ("reverse", "forward"):
        values = [
            float(
                loss_of(
                    spec_of(Is(), distillation=Distillation(kind=kind, top_k=k)),  # type: ignore[arg-type]
                    policy_TV,
                    teacher_TV,
                    torch.tensor([0]),
                ).loss
            )
            for k in range(1, 12)
        ]
        assert values == sorted(values)


def test_a_token_that_the_teacher_never_says_gives_a_finite_divergence() -> None:
    # floor of -20 nats: 1/2 (ln 1/2 - 0) + 1/2 (ln 1/2 + 20)
    teacher_TV = torch.tensor([[0.0, -math.inf]], dtype=torch.float64)
    spec = spec_of(Is(), distillation=Distillation(kind="reverse", top_k=1))
    out = loss_of(spec, log((1 / 2, 1 / 2))[None], teacher_TV, torch.tensor([1]))
    assert float(out.loss) == pytest.approx(10 - LN2, abs=1e-4)


@pytest.mark.parametrize(
    ("kind", "teacher", "slopes"),
    [
        # Cells: both tokens, which the policy says with 1/4 and 3/4. The rest, 0, is at its floor, and the
        # slope by a cell is that of the cell alone: reverse q (1 + l - t), forward -p.
        ("reverse", (1 / 2, 1 / 2), (1 / 4 * (1 - LN2), 3 / 4 * (1 + math.log(3 / 2)))),
        ("forward", (1 / 2, 1 / 2), (-1 / 2, -1 / 2)),
        # The teacher's rest, 1/4, is above the floor: p_r / q_r is 25,000.
        ("reverse", (1 / 4, 1 / 2), (1 / 4, 3 / 4 * (1 + math.log(3 / 2)))),
        ("forward", (1 / 4, 1 / 2), (-1 / 4, -1 / 2)),
    ],
)
def test_a_rest_at_its_floor_does_not_move(
    kind: Any, teacher: tuple[float, ...], slopes: tuple[float, ...]
) -> None:
    policy = log((1 / 4, 3 / 4))
    top = TeacherTop(
        logprobs_TK=policy[None],
        teacher_logprobs_TK=log(teacher)[None],
        sampled_TK=torch.tensor([[False, True]]),
    )
    result = divergence_term(
        Distillation(kind=kind, top_k=2), policy[1:], Taught(logprobs_T=log(teacher)[1:], top=top)
    )
    assert result.slope_TK[0].tolist() == pytest.approx(slopes, abs=1e-12)
    assert result.term.slope_T.tolist() == [0.0]


def test_float32_logprobs_give_the_gradient_of_float64() -> None:
    # a sharp policy: nearly all of its probability is in the cells
    logits_TV, teacher_TV = 6 * random_logits(11, 64, 40), 6 * random_logits(12, 64, 40)
    sampled_T = torch.zeros(64, dtype=torch.long)
    for kind in KINDS:
        spec = spec_of(Is(), distillation=Distillation(kind=kind, top_k=8))
        results = []
        for dtype in (torch.float32, torch.float64):
            inputs = logits_TV.to(dtype).requires_grad_()
            out = loss_of(spec, inputs.log_softmax(1), teacher_TV.to(dtype).log_softmax(1), sampled_T)
            results.append(torch.autograd.grad(out.loss, inputs)[0].double())
        assert float((results[0] - results[1]).norm() / results[1].norm()) < 0.01


def tokens_of(
    spec: LossSpec, mask: tuple[int, ...], *, junk: float = 0.0, **more: Any
) -> tuple[float, Tensor]:
    """Loss and gradient by logits of four tokens, of two sequences; `junk` is added where mask is 0."""
    mask_T = torch.tensor(mask)
    logits_TV = random_logits(13, 4, 6).requires_grad_()
    silent_TV = (junk * (1 - mask_T))[:, None] if junk else torch.zeros(4, 1)
    policy_TV, teacher_TV = logits_TV.log_softmax(1), random_logits(14, 4, 6).log_softmax(1)
    out = loss_of(
        spec,
        policy_TV + silent_TV,
        teacher_TV + silent_TV,
        torch.tensor([0, 1, 2, 3]),
        mask=mask_T,
        sequence_ids=torch.tensor([0, 0, 0, 1]),
        advantages=torch.tensor([0.7, -0.2], dtype=torch.float64),
        **more,
    )
    return float(out.loss.detach()), torch.autograd.grad(out.loss, logits_TV)[0]


@pytest.mark.parametrize("kind", ["advantage", *KINDS])
def test_masked_tokens_teach_nothing(kind: Any) -> None:
    spec = spec_of(Is(), distillation=Distillation(kind=kind, reward_weight=0.5))
    if kind != "advantage":
        spec = spec_of(Is(), distillation=Distillation(kind=kind, reward_weight=0.5, top_k=2))
    loss, gradient_TV = tokens_of(spec, (1, 0, 1, 1))
    assert bool((gradient_TV[1] == 0).all())
    assert bool((gradient_TV[[0, 2, 3]] != 0).any(dim=1).all())
    other, same_TV = tokens_of(spec, (1, 0, 1, 1), junk=-7.0)
    assert other == loss
    torch.testing.assert_close(same_TV, gradient_TV, rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_divergence_has_the_weight_of_the_aggregation_and_no_correction(kind: Any) -> None:
    distillation = Distillation(kind=kind, top_k=2)
    objective = Cispo(anchor="batch")
    _, plain_TV = tokens_of(spec_of(objective, distillation=distillation), (1, 1, 1, 1))
    by_sequence = spec_of(objective, "seq_mean_token_mean", distillation=distillation)
    _, of_sequences_TV = tokens_of(by_sequence, (1, 1, 1, 1))
    torch.testing.assert_close(of_sequences_TV[:3] * 6, plain_TV[:3] * 4)  # 1 / (2 sequences * 3), 1 / 4
    torch.testing.assert_close(of_sequences_TV[3:] * 2, plain_TV[3:] * 4)
    dropping = spec_of(objective, distillation=distillation, corrections=(Mis(),))
    far = {"rollout_logprobs": torch.full((4,), -30.0, dtype=torch.float64)}
    _, dropped_TV = tokens_of(dropping, (1, 1, 1, 1), **far)
    torch.testing.assert_close(dropped_TV, plain_TV)


def test_tokens_over_age_learn_nothing_from_the_teacher() -> None:
    spec = spec_of(Is(), distillation=Distillation(kind="forward", top_k=2), max_staleness=1)
    _, gradient_TV = tokens_of(spec, (1, 1, 1, 1), staleness=torch.tensor([0, 1, 2, 3]))
    assert bool((gradient_TV[2:] == 0).all())
    assert bool((gradient_TV[:2] != 0).any())


def test_it_stands_beside_the_other_terms() -> None:
    kl = Kl(coefficient=0.1, estimator="k2")
    distillation = Distillation(kind="forward", top_k=2, reward_weight=1.0)
    both, both_TV = tokens_of(spec_of(Is(), kl=kl, distillation=distillation), (1, 1, 1, 1))
    taught, taught_TV = tokens_of(
        spec_of(Is(), distillation=Distillation(kind="forward", top_k=2)), (1, 1, 1, 1)
    )
    without, without_TV = tokens_of(
        spec_of(
            Is(),
            kl=kl,
            distillation=Distillation(kind="forward", top_k=2, coefficient=1e-12, reward_weight=1.0),
        ),
        (1, 1, 1, 1),
    )
    assert both == pytest.approx(taught + without, abs=1e-9)
    torch.testing.assert_close(both_TV, taught_TV + without_TV, rtol=1e-8, atol=1e-9)


def test_the_metrics_have_the_divergence_to_the_teacher() -> None:
    # k3 of ln 1/2 at one token: 1/2 - 1 + ln 2
    spec = spec_of(Is(), distillation=Distillation())
    out = loss_of(spec, log(POLICY)[None], log(TEACHER)[None], torch.tensor([1]))
    assert out.metrics["kl_teacher"] == pytest.approx(LN2 - 0.5)


@pytest.mark.parametrize("objective", [Gspo(), Gmpo(), Rspo(), Vespo()], ids=repr)
def test_an_advantage_of_tokens_is_refused_where_one_of_sequences_is_needed(objective: Objective) -> None:
    assert objective.one_advantage_per_sequence
    with pytest.raises(ValueError, match=r"distillation\.kind: got advantage.*use reverse"):
        spec_of(objective, distillation=Distillation())
    assert spec_of(objective, distillation=Distillation(kind="reverse")).distillation is not None


def test_an_advantage_is_refused_beside_a_bound_by_the_sign_of_advantages() -> None:
    with pytest.raises(ValueError, match="m2po of the scope harmful"):
        spec_of(Sapo(), corrections=(M2po(scope="harmful"),), distillation=Distillation())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "advantage", "top_k": 4}, r"distillation\.top_k: got 4"),
        ({"kind": "reverse", "forward_share": 0.5}, r"distillation\.forward_share: got 0\.5"),
        ({"kind": "reverse", "top_k": 0}, r"distillation\.top_k"),
        ({"coefficient": 0.0}, r"distillation\.coefficient"),
        ({"reward_weight": -1.0}, r"distillation\.reward_weight"),
        ({"kind": "backward"}, r"distillation\.kind"),
    ],
)
def test_settings_without_effect_or_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Distillation(**options)


def test_wrong_inputs_are_named() -> None:
    policy_TV, teacher_TV, sampled_T = log(POLICY)[None], log(TEACHER)[None], torch.tensor([1])
    advantage = spec_of(Pg(), distillation=Distillation())
    reverse = spec_of(Pg(), distillation=Distillation(kind="reverse", top_k=2))
    with pytest.raises(ValueError, match="teacher_logprobs: got None, the distillation needs them"):
        loss_of(advantage, policy_TV, teacher_TV, sampled_T, taught=None)
    with pytest.raises(ValueError, match=r"taught\.top: got none, and distillation of the kind reverse"):
        loss_of(reverse, policy_TV, teacher_TV, sampled_T, taught=Taught(logprobs_T=log((1 / 8,))))
    with pytest.raises(ValueError, match=r"taught\.top\.logprobs_TK: got shape \[1, 3\], needs \[1, 2\]"):
        loss_of(
            reverse, policy_TV, teacher_TV, sampled_T, taught=taught_of(policy_TV, teacher_TV, sampled_T, k=3)
        )
    with pytest.raises(
        ValueError, match="taught: got a teacher's logprobs, and the loss has no distillation"
    ):
        policy_loss(
            spec_of(Pg()),
            logprobs=policy_TV[:, 1],
            advantages=torch.zeros(1),
            mask=torch.ones(1),
            sequence_ids=torch.zeros(1, dtype=torch.long),
            taught=Taught(logprobs_T=log((1 / 8,))),
        )


def test_a_mapping_resolves_to_it() -> None:
    loss = resolve_loss({"preset": "cispo", "distillation": {"kind": "mixed", "forward_share": 0.2}})
    assert loss.distillation == Distillation(kind="mixed", forward_share=0.2)
    assert loss.distillation.shares == (0.2, 0.8)
    with pytest.raises(ValueError, match="distillation: got the key 'tok_k'"):
        resolve_loss({"preset": "cispo", "distillation": {"tok_k": 3}})
