"""The rollouts' top logprobs, from the bytes of a completion to the mask of the loss."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from learner.fakes import completion, config_with, group, with_teacher_logprobs, with_top_logprobs
from slipstream.actor.transcript import Transcript
from slipstream.config import RunConfig
from slipstream.learner.batches.batch import TrainingSequence, make_sequences, sampled_tokens
from slipstream.learner.batches.rows import empty_row, make_row
from slipstream.learner.batches.top_logprobs import require_top_logprobs
from slipstream.learner.policy.model import Policy
from slipstream.learner.training.step import TrainingStep
from slipstream.records import Completion, Group, Sampling, TopLogprobs
from slipstream.rollout.emulated_engine import EmulatedEngine
from slipstream.rpc import codec
from slipstream.rpc.group_checks import check_group, parse_group
from slipstream.v1 import types_pb2

CPU = torch.device("cpu")
TOP_K = 3
LIMIT = 0.15


def configured(*overrides: str, divergence: str = "topk_tv", **algorithm: Any) -> RunConfig:
    """The limit is one that some of the tokens of `batch` are beyond."""
    limits = {"limit_low": LIMIT, "limit_high": LIMIT, "cap": None}
    objective: dict[str, Any] = {"kind": "dppo", "divergence": divergence, **limits}
    if divergence.startswith("topk"):
        objective["top_k"] = TOP_K
    algorithm_tree = {
        "preset": "dr_grpo",
        "objective": objective,
        "aggregation": "token_mean",
        "shaping": None,
    }
    return config_with("learner.max_grad_norm=1e9", *overrides, algorithm=algorithm_tree | algorithm)


def batch(policy: Policy, *, temperature: float = 1.0, noise: float = 1.0) -> list[Group]:
    """Two groups as a policy near to this one would have sampled them; an environment put in a token."""
    groups = [
        group(completion((5, 6, 7)), completion((8, 9), reward=0.0), name="a"),
        group(
            completion((5, 30, 9, 7), mask=(1, 0, 1, 1)), completion((1,), reward=0.0), name="b", prompt=(4,)
        ),
    ]
    return with_top_logprobs(groups, policy, top_k=TOP_K, temperature=temperature, noise=noise)


def tensor(payload: bytes, kind: str, columns: int) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(payload, kind).reshape(-1, columns).copy().astype("float64"))


def top_of(answer: Completion) -> TopLogprobs:
    assert answer.top_logprobs is not None
    return answer.top_logprobs


def sampled_places(answer: Completion) -> list[int]:
    return [t for t, sampled in enumerate(answer.mask) if sampled]


def distributions(policy: Policy, prompt: Sequence[int], answer: Completion, temperature: float) -> Any:
    """Logprobs [tokens, V] by the model's own logits, one sequence by itself."""
    ids = torch.tensor([[*prompt, *answer.token_ids]])
    logits = policy.model(input_ids=ids, use_cache=False).logits[0].double()
    return (logits / temperature).log_softmax(dim=-1)[len(prompt) - 1 : -1]


def divergences(
    policy: Policy, groups: Sequence[Group], *, name: str, temperature: float
) -> list[tuple[float, float]]:
    """Of each sampled token of the batch: D and r, from whole distributions of the policy, by hand."""
    values = []
    for each in groups:
        for answer in each.completions:
            with torch.no_grad():
                policy_TV = distributions(policy, each.prompt_token_ids, answer, temperature)
            ids_TK = tensor(top_of(answer).ids, "<u4", TOP_K).long()
            mu_TK = tensor(top_of(answer).logprobs, "<f4", TOP_K)
            for row, t in enumerate(sampled_places(answer)):
                token, mu = answer.token_ids[t], answer.logprobs[t]
                if name.startswith("binary"):
                    cells = {token: mu}
                else:
                    cells = dict(zip(ids_TK[row].tolist(), mu_TK[row].tolist(), strict=True)) | {token: mu}
                pairs = [(float(policy_TV[t, v].exp()), float(np.exp(q))) for v, q in cells.items()]
                pairs.append((1 - sum(p for p, _ in pairs), 1 - sum(q for _, q in pairs)))
                if name.endswith("tv"):
                    distance = sum(abs(p - q) for p, q in pairs) / 2
                else:
                    distance = sum(q * float(np.log(q / p)) for p, q in pairs)
                values.append((distance, float(policy_TV[t, token].exp()) / float(np.exp(mu))))
    return values


def slow_loss(policy: Policy, groups: Sequence[Group], *, name: str, temperature: float) -> tuple[Any, int]:
    """The mean over sampled tokens, with the mask by hand; and how many the mask dropped."""
    distances = iter(divergences(policy, groups, name=name, temperature=temperature))
    terms, dropped = [], 0
    for each in groups:
        mean = sum(c.rewards[0].value for c in each.completions) / len(each.completions)
        for answer in each.completions:
            policy_TV = distributions(policy, each.prompt_token_ids, answer, temperature)
            advantage = answer.rewards[0].value - mean
            for t in sampled_places(answer):
                distance, ratio = next(distances)
                out = distance > LIMIT and (ratio - 1) * advantage > 0
                dropped += out
                terms.append(-(0 if out else ratio * advantage) * policy_TV[t, answer.token_ids[t]])
    return torch.stack(terms).mean(), dropped


def gradient_of(policy: Policy, config: RunConfig, groups: Sequence[Group]) -> dict[str, torch.Tensor]:
    """What the step hands to the optimizer, by parameter."""
    gradient: dict[str, torch.Tensor] = {}

    def look(change: Callable[[], None]) -> None:
        for name, parameter in policy.model.named_parameters():
            assert parameter.grad is not None
            gradient[name] = parameter.grad.clone()

    TrainingStep(policy, config).train(groups, version=0, update=look)
    return gradient


@pytest.mark.parametrize("name", ["topk_tv", "topk_kl"])
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("learner.share_prompts=true",),
        ("learner.max_tokens_per_row=16",),
        ("rollout.temperature=0.7", "learner.logprob_chunk=5"),
    ],
    ids=["plain", "shared prompts", "several rows", "temperature"],
)
def test_the_step_masks_as_whole_distributions_of_the_model_do(
    new_policy: Callable[[], Policy], name: str, overrides: tuple[str, ...]
) -> None:
    config = configured(*overrides, divergence=name)
    temperature = config.rollout.temperature
    groups = batch(new_policy(), temperature=temperature)
    gradient = gradient_of(new_policy(), config, groups)
    slow = new_policy()
    loss, dropped = slow_loss(slow, groups, name=name, temperature=temperature)
    loss.backward()
    assert 0 < dropped < 9  # of 9 sampled tokens
    for parameter_name, parameter in slow.model.named_parameters():
        torch.testing.assert_close(
            gradient[parameter_name], parameter.grad, rtol=1e-3, atol=1e-5, msg=parameter_name
        )
    assert max(float(value.abs().max()) for value in gradient.values()) > 1e-3


@pytest.mark.parametrize("divergence", ["tv", "kl"])
def test_the_top_tokens_mask_a_token_that_the_sampled_one_alone_would_not(
    new_policy: Callable[[], Policy], divergence: str
) -> None:
    groups = batch(new_policy())
    clipped = {}
    for name in (f"binary_{divergence}", f"topk_{divergence}"):
        _, by_hand = slow_loss(new_policy(), groups, name=name, temperature=1.0)
        metrics = TrainingStep(new_policy(), configured(divergence=name)).train(groups, version=0).metrics
        clipped[name] = metrics["clip_fraction_low"] + metrics["clip_fraction_high"]
        assert clipped[name] == pytest.approx(by_hand / 9)
    assert clipped[f"binary_{divergence}"] < clipped[f"topk_{divergence}"]


def test_a_sampled_token_among_the_likeliest_counts_once(new_policy: Callable[[], Policy]) -> None:
    # mu gives the sampled token .1 more than pi, and all others less in proportion: D = .1; twice it is more
    policy = new_policy()
    with torch.no_grad():
        pi_V = distributions(policy, (3, 4), completion((8,)), 1.0)[0].exp()
    mu_V = pi_V * (0.9 - pi_V[8]) / (1 - pi_V[8])
    mu_V[8] = pi_V[8] + 0.1
    top = mu_V.log().topk(TOP_K)
    assert 8 in top.indices.tolist()
    bad = replace(
        completion((8,), logprobs=(float(mu_V[8].log()),), reward=0.0),
        top_logprobs=TopLogprobs(
            top_k=TOP_K,
            ids=top.indices.numpy().astype("<u4").tobytes(),
            logprobs=top.values.numpy().astype("<f4").tobytes(),
        ),
    )
    (completed,) = with_top_logprobs(
        [group(completion((9,)), bad)], policy, top_k=TOP_K, temperature=1.0, noise=0.0
    )
    groups = [replace(completed, completions=(completed.completions[0], bad))]
    for limit, dropped in ((0.105, 0.0), (0.095, 0.5)):
        objective = {"kind": "dppo", "divergence": "topk_tv", "top_k": TOP_K, "limit_low": limit}
        metrics = TrainingStep(new_policy(), configured(objective=objective)).train(groups, version=0).metrics
        assert metrics["clip_fraction_low"] == dropped


def test_the_divergence_to_the_sampling_policy_itself_is_zero(new_policy: Callable[[], Policy]) -> None:
    groups = batch(new_policy(), noise=0.0)
    distances = divergences(new_policy(), groups, name="topk_kl", temperature=1.0)
    assert max(abs(distance) for distance, _ in distances) < 1e-5
    result = TrainingStep(new_policy(), configured(divergence="topk_kl")).train(groups, version=0)
    assert result.metrics["clip_fraction_low"] == result.metrics["clip_fraction_high"] == 0


def test_a_second_epoch_is_masked_by_the_policy_that_the_first_one_left(
    new_policy: Callable[[], Policy],
) -> None:
    groups = batch(new_policy(), noise=0.0)
    steps = [
        TrainingStep(new_policy(), configured(f"learner.epochs={epochs}", "learner.learning_rate=0.1")).train(
            groups, version=0
        )
        for epochs in (1, 4)
    ]
    shares = [s.metrics["clip_fraction_low"] + s.metrics["clip_fraction_high"] for s in steps]
    assert shares[0] == 0 < shares[1]


def numbered(tokens: int, first: int, top_k: int = 2) -> TopLogprobs:
    ids = np.arange(first, first + tokens * top_k)
    return TopLogprobs(
        top_k=top_k, ids=ids.astype("<u4").tobytes(), logprobs=(-ids / 4).astype("<f4").tobytes()
    )


@pytest.mark.parametrize("shared", [False, True])
def test_a_row_worked_by_hand(shared: bool) -> None:
    answers = [
        replace(completion((10, 11, 12), mask=(1, 0, 1)), top_logprobs=numbered(2, 0)),
        replace(completion((20,)), top_logprobs=numbered(1, 40)),
    ]
    sequences = [
        TrainingSequence(prompt_token_ids=(3, 4), segment=c, place=i, group=0) for i, c in enumerate(answers)
    ]
    row = make_row(sequences, sampled_tokens(sequences), CPU, share_prompts=shared, rollout_top=True)
    assert row.rollout_top is not None
    assert row.targets_T.tolist() == [10, 12, 20]
    assert row.rollout_top.ids_TK.tolist() == [[0, 1], [2, 3], [40, 41]]
    assert row.rollout_top.logprobs_TK.tolist() == [[0, -0.25], [-0.5, -0.75], [-10, -10.25]]
    held = (row.rollout_top.ids_TK, row.rollout_top.logprobs_TK)
    assert sum(part.numel() * part.element_size() for part in held) == 8 * 2 * 3  # 8 K bytes a token
    assert make_row(sequences, sampled_tokens(sequences), CPU).rollout_top is None


def test_an_empty_row_has_as_many_likeliest_tokens_as_the_others() -> None:
    top = empty_row(CPU, rollout_top_k=3).rollout_top
    assert top is not None
    assert tuple(top.ids_TK.shape) == tuple(top.logprobs_TK.shape) == (1, 3)
    assert empty_row(CPU).rollout_top is None


def test_no_top_logprobs_are_computed_that_the_objective_does_not_read(
    new_policy: Callable[[], Policy],
) -> None:
    groups = batch(new_policy())
    plain = [
        replace(g, completions=tuple(replace(c, top_logprobs=None) for c in g.completions)) for g in groups
    ]
    config = configured(divergence="binary_tv")
    gradient, without = (gradient_of(new_policy(), config, each) for each in (groups, plain))
    for name, value in gradient.items():
        assert torch.equal(value, without[name])


def test_a_batch_without_top_logprobs_or_with_others_is_refused(new_policy: Callable[[], Policy]) -> None:
    training = TrainingStep(new_policy(), configured())
    complete = batch(new_policy())
    first, second = complete[0].completions
    none = replace(complete[0], completions=(first, replace(second, top_logprobs=None)))
    with pytest.raises(ValueError, match="group a: a completion with no top logprobs a token, and the obj"):
        training.train([none, complete[1]], version=0)
    fewer = replace(complete[0], completions=(first, replace(second, top_logprobs=numbered(2, 0))))
    with pytest.raises(ValueError, match="completion with 2 top logprobs a token, and the objective reads 3"):
        training.train([fewer, complete[1]], version=0)
    foreign = replace(first, top_logprobs=numbered(3, 90, top_k=3))
    with pytest.raises(ValueError, match="group a: token 98 among the top logprobs, and the model has"):
        require_top_logprobs([replace(complete[0], completions=(foreign,))], 3, vocabulary=98)


def test_completions_that_cannot_train_need_none(new_policy: Callable[[], Policy]) -> None:
    complete = batch(new_policy())
    withheld = completion((5, 6), reward=None)
    silent = completion((7,), mask=(0,))
    more = replace(complete[0], completions=(*complete[0].completions, withheld, silent))
    result = TrainingStep(new_policy(), configured()).train([more, complete[1]], version=0)
    assert (result.updates, result.tokens) == (1, 9)


def test_a_teacher_and_top_logprobs_go_together(new_policy: Callable[[], Policy]) -> None:
    groups = with_teacher_logprobs(batch(new_policy()), top_k=4)
    distillation = {"kind": "reverse", "top_k": 4, "reward_weight": 1.0}
    both = gradient_of(new_policy(), configured(distillation=distillation), groups)
    rewards = gradient_of(new_policy(), configured(), batch(new_policy()))
    lessons = gradient_of(
        new_policy(), configured(distillation=distillation | {"reward_weight": 0.0}), groups
    )
    for name, value in both.items():
        torch.testing.assert_close(value, rewards[name] + lessons[name], rtol=1e-4, atol=1e-6, msg=name)


def test_the_policys_logprobs_of_top_tokens_are_constants(new_policy: Callable[[], Policy]) -> None:
    policy, config = new_policy(), configured()
    sequences = make_sequences(batch(new_policy()), config.algorithm.declared_shaping())
    row = make_row(sequences, sampled_tokens(sequences), CPU, rollout_top=True)
    forward = TrainingStep(policy, config).forward
    now = forward(policy, row, others=True)
    assert now.constants_TK is not None
    assert now.constants_TK.shape == (9, TOP_K)
    assert not now.constants_TK.requires_grad
    assert now.logprobs_T.requires_grad
    assert forward.without_gradient(policy, row).constants_TK is None  # no other pass pays for them


def test_samples_of_the_emulated_engine_pass_over_the_wire_into_a_step(policy: Policy) -> None:
    config = configured("rollout.engine=emulated", "rollout.emulated.median_seconds=0.01")
    engine = EmulatedEngine(config)

    async def sample() -> Group:
        await engine.commit(0)
        sampling = Sampling(temperature=1.0, max_tokens=5, top_logprobs=TOP_K)

        async def answer() -> Completion:
            transcript = Transcript()
            transcript.add(await engine.sample((3, 4), sampling))
            return transcript.completion()

        answers = [await answer() for _ in range(2)]
        scored = [
            replace(a, rewards=completion(reward=r).rewards) for a, r in zip(answers, (1, 0), strict=True)
        ]
        return group(*scored)

    sent = codec.group_to_proto(asyncio.run(sample())).SerializeToString()
    check_group(parse_group(sent), 99)
    received = codec.group_from_proto(types_pb2.Group.FromString(sent))
    by_hand = divergences(policy, [received], name="topk_tv", temperature=1.0)
    metrics = TrainingStep(policy, config).train([received], version=0).metrics
    share = metrics["out_of_band_fraction_low"] + metrics["out_of_band_fraction_high"]
    assert share == pytest.approx(sum(distance > LIMIT for distance, _ in by_hand) / 10)
    assert share > 0
