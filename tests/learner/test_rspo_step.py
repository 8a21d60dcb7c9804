"""RSPO and routing replay in a training step: router logprobs before the batch against the current ones."""

from collections.abc import Callable
from dataclasses import replace
from math import exp

import pytest
import torch
from learner.fakes import completion, config_with, group
from learner.slow_experts import row_of, run, slowly, top
from slipstream.config import RunConfig
from slipstream.learner.batches.batch import TrainingSequence
from slipstream.learner.batches.rows import Row
from slipstream.learner.policy.model import Policy
from slipstream.learner.policy.routing import UnsupportedRouting
from slipstream.learner.training.record import StepResult
from slipstream.learner.training.step import TrainingStep
from slipstream.records import Completion, Group, RoutedExperts, RoutingMismatch

GROUPS = [
    group(completion((5, 6, 7), reward=1.0), completion((8, 9), reward=0.0), prompt=(3, 4), name="a"),
    group(completion((20, 21), reward=0.0), completion((22, 23), reward=1.0), prompt=(7, 8, 9), name="b"),
]
LAYERS, EXPERTS, TOP_K = 3, 8, 2


def rspo(*overrides: str) -> RunConfig:
    return config_with("algorithm.preset=rspo", "learner.max_grad_norm=1e9", *overrides)


def train(policy: Policy, groups: list[Group], config: RunConfig) -> StepResult:
    return TrainingStep(policy, config).train(groups, version=0)


def weights(policy: Policy) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in policy.model.parameters()])


def gradients_of(policy: Policy, groups: list[Group], config: RunConfig) -> list[torch.Tensor]:
    """The flat gradient of each minibatch; in between, the weights move by the same noise every time.

    Not by AdamW, whose first update is the sign of a gradient, however small.
    """
    collected: list[torch.Tensor] = []
    generator = torch.Generator().manual_seed(5)

    def look(change: Callable[[], None]) -> None:
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in policy.model.parameters()]
        collected.append(torch.cat([gradient.flatten() for gradient in gradients]))
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter += 0.01 * torch.randn(parameter.shape, generator=generator)

    TrainingStep(policy, config).train(groups, version=0, update=look)
    return collected


def test_before_the_first_update_the_routers_have_not_moved(moe_policy: Policy) -> None:
    result = train(moe_policy, GROUPS, rspo())
    assert result.updates == 1
    assert result.metrics["router_shift"] == 1.0


def test_before_the_first_update_rspo_is_gmpo(new_moe_policy: Callable[[], Policy]) -> None:
    gmpo = rspo("algorithm.objective={kind: gmpo, anchor: batch}")
    (wanted,) = gradients_of(new_moe_policy(), GROUPS, gmpo)
    (gradient,) = gradients_of(new_moe_policy(), GROUPS, rspo())
    assert float(wanted.abs().max()) > 0
    torch.testing.assert_close(gradient, wanted)


def test_without_an_update_in_between_each_of_several_minibatches_has_weight_one(moe_policy: Policy) -> None:
    start = weights(moe_policy)
    training = TrainingStep(moe_policy, rspo("learner.minibatches=2"))
    result = training.train(GROUPS, version=0, update=lambda change: None)
    assert torch.equal(weights(moe_policy), start)
    assert result.metrics["router_shift"] == 1.0


def test_after_an_update_a_token_weighs_by_the_shift_that_slow_routers_have(
    new_moe_policy: Callable[[], Policy],
) -> None:
    policy = new_moe_policy()
    moved: list[Policy] = []

    def update(change: Callable[[], None]) -> None:
        change()
        moved.append(slowly(policy, [top(TOP_K)] * LAYERS)[0])

    config = rspo("learner.minibatches=2", "learner.learning_rate=0.003")
    result = TrainingStep(policy, config).train(GROUPS, version=0, update=update)

    shifts = slow_shifts(new_moe_policy(), moved[0], GROUPS[1])
    # the first minibatch, five tokens, has shift 1
    assert result.metrics["router_shift"] == pytest.approx((5 + sum(shifts)) / 9, abs=1e-5)
    assert max(shifts) < 0.999


def slow_shifts(old: Policy, now: Policy, trained: Group) -> list[float]:
    """exp(-mean |log router_now - log router_old|) over layers and the experts of the old router."""
    shifts = []
    for answer in trained.completions:
        row = row_of([alone(trained, answer)])
        before = seen(slowly(old, [top(TOP_K)] * LAYERS)[0], row)
        after = seen(now, row)
        for place in row.predictors_T.tolist():
            drifts = [
                abs(float(after[layer][place][e].log() - before[layer][place][e].log()))
                for layer in range(LAYERS)
                for e in before[layer][place].topk(TOP_K).indices.tolist()
            ]
            shifts.append(exp(-sum(drifts) / len(drifts)))
    return shifts


def seen(slow: Policy, row: Row) -> list[list[torch.Tensor]]:
    """Router probabilities [layers][R][E] of a forward pass in slow loops."""
    blocks = [layer.mlp for layer in slow.model.model.layers]
    for block in blocks:
        block.seen.clear()
    with torch.no_grad():
        run(slow, row)
    return [block.seen for block in blocks]


def test_the_shift_of_the_routers_is_in_the_gradient(new_moe_policy: Callable[[], Policy]) -> None:
    def second(*overrides: str) -> torch.Tensor:
        return gradients_of(new_moe_policy(), GROUPS, rspo("learner.minibatches=2", *overrides))[1]

    free = second("algorithm.objective={kind: rspo, gamma_min: 0.01}")
    held = second("algorithm.objective={kind: rspo, gamma_min: 1.0}")
    assert float((free - held).abs().max()) > 1e-3 * float(held.abs().max())


def test_any_packing_gives_the_same_shift_and_gradient(new_moe_policy: Callable[[], Policy]) -> None:
    def at(*overrides: str) -> torch.Tensor:
        return gradients_of(new_moe_policy(), GROUPS, rspo("learner.minibatches=2", *overrides))[1]

    unsplit = at("learner.max_tokens_per_row=64")
    for other in (at("learner.max_tokens_per_row=16"), at("learner.share_prompts=true")):
        torch.testing.assert_close(other, unsplit, rtol=1e-3, atol=1e-4 * float(unsplit.abs().max()))


def test_a_dense_model_is_refused_by_name(policy: Policy) -> None:
    with pytest.raises(UnsupportedRouting, match="Qwen2ForCausalLM: is a dense model, without a router"):
        TrainingStep(policy, rspo())
    with pytest.raises(UnsupportedRouting, match="is a dense model"):
        TrainingStep(policy, config_with("learner.replay_experts=true"))


def test_other_objectives_leave_the_routers_alone(moe_policy: Policy) -> None:
    assert TrainingStep(moe_policy, config_with()).policy.routers is None


REPLAY = ("algorithm.preset=cispo", "learner.replay_experts=true", "learner.max_grad_norm=1e9")


def with_experts(groups: list[Group], *, seed: int = 0) -> list[Group]:
    """The same groups, each completion with experts drawn at random, all but the last token's."""
    torch.manual_seed(seed)
    return [
        replace(g, completions=tuple(_routed(c, len(g.prompt_token_ids)) for c in g.completions))
        for g in groups
    ]


def _routed(answer: Completion, prompt_tokens: int) -> Completion:
    tokens = prompt_tokens + len(answer.token_ids) - 1
    ids = torch.rand(tokens, LAYERS, EXPERTS).topk(TOP_K, dim=2).indices.to(torch.uint8)
    experts = RoutedExperts(tokens=tokens, layers=LAYERS, top_k=TOP_K, id_bytes=1, ids=ids.numpy().tobytes())
    return replace(answer, routed_experts=experts)


def test_a_step_with_replay_has_the_gradient_of_slow_loops_over_the_replayed_experts(
    new_moe_policy: Callable[[], Policy],
) -> None:
    groups = with_experts(GROUPS[:1])
    policy = new_moe_policy()
    config = config_with(
        *REPLAY,
        "algorithm.advantage={kind: dr_grpo}",
        "algorithm.objective={kind: pg, allow_uncorrected: true}",
    )
    (step_gradient,) = gradients_of(policy, groups, config)

    wanted = torch.zeros_like(step_gradient)
    for answer, advantage in zip(groups[0].completions, (0.5, -0.5), strict=True):  # dr_grpo: R - mean
        experts = experts_by_token(answer)
        slow, _ = slowly(new_moe_policy(), [replaying(experts, layer) for layer in range(LAYERS)])
        logprobs_T = run(slow, row_of([alone(groups[0], answer)])).logprobs_T
        (-advantage * logprobs_T.sum() / 5).backward()  # token mean over 3 + 2 tokens
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in slow.model.parameters()]
        wanted += torch.cat([gradient.flatten() for gradient in gradients])
    assert float(wanted.abs().max()) > 0
    torch.testing.assert_close(step_gradient, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))


def alone(of: Group, answer: Completion) -> TrainingSequence:
    return TrainingSequence(prompt_token_ids=of.prompt_token_ids, segment=answer, place=0, group=0)


def experts_by_token(answer: Completion) -> list[list[list[int]]]:
    experts = answer.routed_experts
    assert experts is not None
    ids = torch.tensor(list(experts.ids)).reshape(experts.tokens, experts.layers, experts.top_k)
    nested_ids: list[list[list[int]]] = ids.tolist()
    return nested_ids


def replaying(experts: list[list[list[int]]], layer: int) -> Callable[[int, torch.Tensor], list[int]]:
    def choose(place: int, probabilities: torch.Tensor) -> list[int]:
        return experts[place][layer] if place < len(experts) else top(TOP_K)(place, probabilities)

    return choose


def test_with_replay_the_experts_decide_the_gradient(new_moe_policy: Callable[[], Policy]) -> None:
    config = config_with(*REPLAY)
    one, same, other = (
        gradients_of(new_moe_policy(), with_experts(GROUPS, seed=seed), config)[0] for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert float((one - other).abs().max()) > 0.1 * float(one.abs().max())


def test_experts_that_came_along_are_not_used_unless_asked_for(new_moe_policy: Callable[[], Policy]) -> None:
    config = config_with("algorithm.preset=cispo", "learner.max_grad_norm=1e9")
    (plain,) = gradients_of(new_moe_policy(), GROUPS, config)
    (carried,) = gradients_of(new_moe_policy(), with_experts(GROUPS), config)
    assert torch.equal(carried, plain)


def test_a_batch_without_experts_stops_a_replaying_step_before_it_changes_anything(
    moe_policy: Policy,
) -> None:
    start = weights(moe_policy)
    with pytest.raises(RoutingMismatch, match="group a: a completion without routed experts"):
        train(moe_policy, GROUPS, config_with(*REPLAY))
    assert torch.equal(weights(moe_policy), start)


def test_rspo_with_replay_takes_the_replayed_experts_for_the_active_ones(moe_policy: Policy) -> None:
    config = rspo("learner.replay_experts=true", "learner.minibatches=2", "learner.learning_rate=0.003")
    result = train(moe_policy, with_experts(GROUPS), config)
    assert result.updates == 2
    assert 0.5 < result.metrics["router_shift"] < 1.0
