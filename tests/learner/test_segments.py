"""A completion of several segments trains as one completion, however its conversation is cut into segments.

The engine sees the same context before each sampled token, whether a turn follows the turns before it in one
segment, or is a segment of its own whose prompt is all of them. So a loss by token has the same gradient.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner.fakes import completion, config_with, group
from learner.test_critic import configured as with_critic
from learner.test_critic import critic_of, training_of, unlike_zero
from slipstream.algorithms import Counts
from slipstream.algorithms.aggregation import sequence_weights
from slipstream.algorithms.spec import Aggregation, OverlongFilter, Shaping, SoftOverlong
from slipstream.config import RunConfig
from slipstream.learner.batches.batch import make_sequences, sampled_tokens, split
from slipstream.learner.batches.packing import pack, without_too_long
from slipstream.learner.batches.rows import make_row
from slipstream.learner.policy.loading import load_policy
from slipstream.learner.policy.model import Policy
from slipstream.learner.training.rewards import batch_rewards, diversity_of
from slipstream.learner.training.step import TrainingStep
from slipstream.records import (
    Completion,
    FinishReason,
    Group,
    Outcome,
    Reward,
    Segment,
    StepReward,
    TurnEnd,
    VersionSpan,
)
from slipstream.records.completion import sampling_order

CPU = torch.device("cpu")
PLAIN: dict[str, Any] = {"preset": "grpo", "advantage": {"kind": "dr_grpo"}, "aggregation": "token_mean"}
AGGREGATIONS = ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "token_sum_norm", "prompt_mean"]


def cut(answer: Completion, prompt: Sequence[int], ends: Sequence[int], *, first: int = 0) -> Completion:
    """The answer with a segment up to each of `ends`, of which the last is its length.

    first: which of them is the first segment; the others follow in order.
    """
    segments = []
    for number, (start, end) in enumerate(pairwise([0, *ends])):
        fields = {
            "token_ids": answer.token_ids[start:end],
            "logprobs": answer.logprobs[start:end],
            "mask": answer.mask[start:end],
            "spans": _spans(answer, start, end),
            "finish_reason": answer.finish_reason,
            "prompt_token_ids": (*prompt, *answer.token_ids[:start]) if start else None,
            "turn_ends": (TurnEnd(number=number, token_end=end - start),),
        }
        segments.append(fields)
    own = segments.pop(first)
    where = {old: new for new, old in enumerate([first, *(n for n in range(len(ends)) if n != first)])}
    rewards = tuple(
        replace(reward, steps=tuple(_moved(step, [0, *ends], where) for step in reward.steps))
        for reward in answer.rewards
    )
    later = tuple(Segment(**fields) for fields in segments)
    return Completion(**own, text=answer.text, rewards=rewards, later_segments=later)


def _moved(step: StepReward, bounds: Sequence[int], where: dict[int, int]) -> StepReward:
    number = next(n for n, (_, end) in enumerate(pairwise(bounds)) if step.token_end <= end)
    return replace(step, token_end=step.token_end - bounds[number], segment=where[number])


def _spans(answer: Completion, start: int, end: int) -> tuple[VersionSpan, ...]:
    inside = [(span.version, max(span.start, start), min(span.end, end)) for span in answer.spans]
    return tuple(VersionSpan(version=v, start=a - start, end=b - start) for v, a, b in inside if a < b)


def at_random(answer: Completion, prompt: Sequence[int], random: Random) -> Completion:
    """The answer in up to three segments, in any order, each with a sampled token."""
    sampled = [i for i, bit in enumerate(answer.mask) if bit]
    inner = sorted(random.sample(sampled[1:], min(random.randint(0, 2), len(sampled) - 1)))
    ends = [*inner, len(answer.token_ids)]
    return cut(answer, prompt, ends, first=random.randrange(len(ends)))


def conversation(random: Random, reward: float) -> Completion:
    """An answer of up to 12 tokens, sampled by several versions, with observations in it."""
    size = random.randint(2, 12)
    mask = [1, *(random.randint(0, 1) for _ in range(size - 2)), 1]
    answer = completion(
        [random.randint(1, 60) for _ in range(size)],
        versions=sorted(random.randint(0, 3) for _ in range(size)),
        logprobs=[-random.uniform(2, 6) * bit for bit in mask],
        mask=mask,
        reward=reward,
    )
    sampled = [i + 1 for i, bit in enumerate(mask) if bit]
    ends = sorted({*random.sample(sampled, min(2, len(sampled))), size})
    steps = tuple(StepReward(value=random.random(), text_end=0, token_end=end) for end in ends)
    total = sum(step.value for step in steps)
    by_turn = Reward(name="turns", value=total, outcome=Outcome.SCORE, steps=steps)
    return replace(answer, rewards=(*answer.rewards, by_turn))


def batch(seed: int) -> tuple[list[Group], list[Group]]:
    """Two groups of two, whole and cut into segments."""
    random = Random(seed)
    joined = [
        group(conversation(random, 1.0), conversation(random, 0.0), name=name, prompt=prompt)
        for name, prompt in (("a", (3, 4)), ("b", (7, 8, 9)))
    ]
    parts = [
        replace(g, completions=tuple(at_random(c, g.prompt_token_ids, random) for c in g.completions))
        for g in joined
    ]
    return joined, parts


def configured(*overrides: str, **algorithm: Any) -> RunConfig:
    rewards = [
        {"name": "exact_match"},
        {"name": "turns", "kind": "custom", "function": "a:b", "weight": 0.5},
    ]
    base = ("learner.max_grad_norm=1e9", "staleness.max_staleness=8")
    return config_with(*base, *overrides, rewards=rewards, algorithm=PLAIN | algorithm)


def gradient(policy: Policy, config: RunConfig, groups: Sequence[Group]) -> torch.Tensor:
    return gradient_of(TrainingStep(policy, config), groups)


def gradient_of(training: TrainingStep, groups: Sequence[Group]) -> torch.Tensor:
    """The gradients of all minibatches of a step, one after the other; nothing is changed."""
    read: list[torch.Tensor] = []

    def keep(change: Callable[[], None]) -> None:
        read.extend(p.grad.flatten() for p in training.policy.model.parameters() if p.grad is not None)

    training.train(groups, version=3, update=keep)
    return torch.cat(read)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    aggregation=st.sampled_from(AGGREGATIONS),
    objective=st.sampled_from(["ppo_clip", "cispo", "is"]),
    supervision=st.sampled_from(["outcome", "process"]),
    learner=st.sampled_from(
        [
            {},
            {"max_tokens_per_row": 16},
            {"minibatches": 2},
            {"share_prompts": True},
            {"share_prompts": True, "max_tokens_per_row": 32},
        ]
    ),
)
def test_cutting_a_conversation_into_segments_does_not_change_the_gradient(
    tiny_policy: Policy,
    seed: int,
    aggregation: str,
    objective: str,
    supervision: str,
    learner: dict[str, Any],
) -> None:
    joined, parts = batch(seed)
    advantage = {"kind": "rloo"} if supervision == "process" else {"kind": "dr_grpo"}
    algorithm: dict[str, Any] = {
        "aggregation": aggregation,
        "objective": {"kind": objective},
        "supervision": supervision,
        "advantage": advantage,
    }
    config = configured(*(f"learner.{key}={value}" for key, value in learner.items()), **algorithm)
    expected = gradient(tiny_policy, config, joined)
    assert float(expected.norm()) > 1e-6
    torch.testing.assert_close(gradient(tiny_policy, config, parts), expected, rtol=1e-3, atol=1e-6)


@pytest.fixture(scope="module")
def tiny_policy(tiny_dir: Any) -> Policy:
    return load_policy(tiny_dir, source=tiny_dir, device=CPU, dtype=torch.float32)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("supervision", ["outcome", "process"])
def test_with_a_critic_each_segment_ends_with_the_rewards_that_are_left(
    policy: Policy, seed: int, supervision: str
) -> None:
    joined, parts = batch(seed)
    algorithm = {
        "preset": "ppo",
        "advantage": {"kind": "gae", "whiten": False},
        "aggregation": "token_mean",
        "supervision": supervision,
    }
    config = with_critic(policy, "staleness.max_staleness=8", algorithm=algorithm)
    config = config.model_copy(update={"rewards": configured().rewards})
    training = training_of(policy, config)
    unlike_zero(critic_of(training))
    expected = gradient_of(training, joined)
    assert float(expected.norm()) > 1e-6
    torch.testing.assert_close(gradient_of(training, parts), expected, rtol=1e-3, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    ranks=st.integers(1, 3),
    row=st.integers(16, 64),
    share=st.booleans(),
    aggregation=st.sampled_from(["token_mean", "seq_mean_token_mean"]),
)
def test_a_completion_weighs_the_same_in_any_rows_on_any_ranks(
    seed: int, ranks: int, row: int, share: bool, aggregation: Any
) -> None:
    joined, parts = batch(seed)
    weights = []
    for groups in (joined, parts):
        sequences = make_sequences(groups, Shaping())
        totals = sampled_tokens(sequences)
        counts = Counts(tokens=totals.total, sequences=len(totals.by_completion))
        of_place = torch.zeros(4, dtype=torch.float64)
        for members in pack(sequences, max_tokens=row, share_prompts=share, ranks=ranks):
            if members:
                packed = make_row(members, totals, CPU, share_prompts=share)
                own = replace(counts, completion_tokens_B=packed.completion_tokens_B)
                weight_B = sequence_weights(
                    Aggregation(kind=aggregation), packed.layout, own, dtype=torch.float64
                )
                of_place.index_add_(0, packed.places_B, weight_B * packed.layout.lengths_B)
        weights.append(of_place)
    torch.testing.assert_close(weights[0], weights[1])
    assert float(weights[1].sum()) == pytest.approx(1)
    if aggregation == "seq_mean_token_mean":
        torch.testing.assert_close(weights[1], torch.full((4,), 0.25, dtype=torch.float64))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_rewards_and_diversity_of_a_batch_do_not_depend_on_the_segments(seed: int) -> None:
    joined, parts = batch(seed)
    names = {"exact_match": 1.0, "turns": 0.5}
    one, other = (batch_rewards(groups, names, Shaping()) for groups in (joined, parts))
    assert torch.equal(one.components_BN, other.components_BN)
    assert torch.equal(one.group_ids_B, other.group_ids_B)
    assert torch.equal(one.lengths_B, other.lengths_B)
    spread = [diversity_of(groups, names, Shaping(), None)["duplicate_share"] for groups in (joined, parts)]
    assert spread[0] == spread[1]


def test_the_order_of_sampling_follows_the_turns_and_not_the_segments() -> None:
    # The main conversation samples 2 tokens, a sub-agent 1, the main conversation 1, the sub-agent 2.
    main = replace(
        completion((5, 6, 90, 7), mask=(1, 1, 0, 1)),
        turn_ends=(TurnEnd(number=0, token_end=2), TurnEnd(number=2, token_end=4)),
        later_segments=(
            _segment(
                (8, 91, 9, 9), (1, 0, 1, 1), TurnEnd(number=1, token_end=1), TurnEnd(number=3, token_end=4)
            ),
        ),
    )
    assert [list(each) for each in sampling_order(main)] == [[0, 1, 3], [2, 4, 5]]
    without_turns = replace(main, turn_ends=(), later_segments=(_segment((8, 9), (1, 1)),))
    assert [list(each) for each in sampling_order(without_turns)] == [[0, 1, 2], [3, 4]]


def _segment(tokens: Sequence[int], mask: Sequence[int], *turns: TurnEnd) -> Segment:
    return Segment(
        token_ids=tuple(tokens),
        logprobs=(-1.0,) * len(tokens),
        mask=tuple(mask),
        spans=(VersionSpan(version=0, start=0, end=len(tokens)),),
        finish_reason=FinishReason.STOP,
        prompt_token_ids=(40, 41),
        turn_ends=turns,
    )


def test_segments_share_a_row_s_prompt_only_if_it_is_the_same() -> None:
    answer = replace(completion((5, 6)), later_segments=(_segment((7,), (1,)), _segment((8,), (1,))))
    sequences = make_sequences([group(answer, completion((9,)))], Shaping())
    (members,) = pack(sequences, max_tokens=64, share_prompts=True)
    row = make_row(members, sampled_tokens(sequences), CPU, share_prompts=True)
    assert sorted(row.tokens_R.tolist()) == sorted([3, 4, 5, 6, 9, 40, 41, 7, 8])
    before = {
        int(row.targets_T[t]): row.tokens_R[: int(row.predictors_T[t]) + 1][
            row.attention_RR[int(row.predictors_T[t])][: int(row.predictors_T[t]) + 1]  # type: ignore[index]
        ].tolist()
        for t in range(5)
    }
    assert before == {5: [3, 4], 6: [3, 4, 5], 9: [3, 4], 7: [40, 41], 8: [40, 41]}


def test_a_segment_that_does_not_fit_into_a_row_is_left_out_and_the_others_weigh_as_the_completion() -> None:
    answer = replace(completion((5, 6)), later_segments=(_segment(range(30), (1,) * 30),))
    fitting, left_out = without_too_long(make_sequences([group(answer)], Shaping()), 16)
    assert left_out == 1
    assert [sequence.segment.token_ids for sequence in fitting] == [(5, 6)]
    assert sampled_tokens(fitting).by_completion == {0: 2}


def test_filters_take_out_all_segments_of_a_completion() -> None:
    answer = replace(completion((5, 6)), later_segments=(_segment((7,), (1,)),))
    other = replace(completion((5, 6)), later_segments=(_segment((8,), (1,)),))
    withheld = replace(completion((5, 6), reward=None), later_segments=(_segment((7,), (1,)),))
    overlong = replace(answer, finish_reason=FinishReason.LENGTH)
    groups = [group(answer, answer, other, withheld, overlong)]

    def places(shaping: Shaping) -> list[int]:
        return [sequence.place for sequence in make_sequences(groups, shaping)]

    assert places(Shaping()) == [0, 0, 1, 1, 2, 2, 4, 4]
    assert places(Shaping(duplicates="drop")) == [0, 0, 2, 2]
    assert places(Shaping(overlong_filter=OverlongFilter())) == [0, 0, 1, 1, 2, 2]


def test_minibatches_keep_the_segments_of_a_completion_together() -> None:
    answer = replace(completion((5, 6)), later_segments=(_segment((7,), (1,)),))
    sequences = make_sequences([group(answer), group(answer, name="b")], Shaping())
    assert [[each.place for each in part] for part in split(sequences, 2)] == [[0, 0], [1, 1]]


def test_the_penalty_for_length_is_that_of_the_longest_segment() -> None:
    answer = replace(completion((5, 6)), later_segments=(_segment((7, 8, 9), (1, 1, 1)),))
    shaping = Shaping(soft_overlong=SoftOverlong(safe_len=1, max_len=5))
    rewards = batch_rewards([group(answer, completion((5, 6, 7)))], {"exact_match": 1.0}, shaping)
    assert rewards.total_B.tolist() == [0.5, 0.5]
    assert rewards.lengths_B.tolist() == [5, 3]


@pytest.mark.parametrize("seed", range(3))
def test_gspo_token_takes_advantages_by_turn_and_on_policy_segments_change_nothing(
    policy: Policy, seed: int
) -> None:
    joined, parts = batch(seed)
    by_turn = {"supervision": "process", "advantage": {"kind": "rloo"}}
    config = configured(objective={"kind": "gspo_token", "anchor": "batch"}, **by_turn)
    expected = gradient(
        policy, configured(objective={"kind": "ppo_clip", "anchor": "batch"}, **by_turn), joined
    )
    for groups in (joined, parts):
        torch.testing.assert_close(gradient(policy, config, groups), expected, rtol=1e-3, atol=1e-6)
    outcome = configured(objective={"kind": "gspo_token", "anchor": "batch"}, advantage={"kind": "rloo"})
    assert not torch.allclose(gradient(policy, outcome, joined), expected, rtol=1e-2)


def test_a_sequence_ratio_is_that_of_a_segment(policy: Policy) -> None:
    # gspo's ratio is the geometric mean over a segment, so here cutting a conversation changes the gradient.
    joined, parts = batch(4)
    config = configured(aggregation="seq_mean_token_mean", objective={"kind": "gspo", "anchor": "rollout"})
    one, other = (gradient(policy, config, groups) for groups in (joined, parts))
    assert not torch.allclose(one, other, rtol=1e-2)
    assert torch.equal(gradient(policy, config, parts), other)
