"""Preference training on a tiny policy: the reference, the gradient under any packing, and what it does."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from learner.fakes import completion, config_with, group
from slipstream.algorithms.preference import preference_loss
from slipstream.config import parse_config
from slipstream.config.stages import PreferenceStage
from slipstream.learner.policy.model import Policy
from slipstream.learner.stages.answer_logprobs import answer_logprobs
from slipstream.learner.stages.judge import Judge
from slipstream.learner.stages.pairs import PreferencePair
from slipstream.learner.stages.preference import PreferenceTraining, backward, rows_of, with_reference
from slipstream.learner.stages.supervised import Interrupted, Pair, unsampled_answer
from slipstream.learner.stages.verified import NothingKept
from slipstream.prompts import make_source
from slipstream.records import Group
from slipstream.tokens import load_tokens

PAIRS = [
    PreferencePair(
        group=group(name=f"g{place}", prompt=(3, 4 + place)),
        chosen=completion((5, 6 + place, 7)),
        rejected=completion((8, 9)[: 1 + place % 2]),
    )
    for place in range(5)
]


def stage_of(**fields: Any) -> PreferenceStage:
    config = parse_config({"stages": [{"name": "s", "kind": "preference", **fields}]})
    (stage,) = config.stages
    assert isinstance(stage, PreferenceStage)
    return stage


def halves(pairs: Sequence[PreferencePair]) -> list[Pair]:
    return [
        Pair(prompt_token_ids=pair.group.prompt_token_ids, answer=answer)
        for pair in pairs
        for answer in (pair.chosen, pair.rejected)
    ]


def alone(policy: Policy, pair: Pair) -> torch.Tensor:
    """The slow way: one sequence, the model's own logits, token by token."""
    ids = (*pair.prompt_token_ids, *pair.answer.token_ids)
    logits = policy.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(dim=-1)
    first = len(pair.prompt_token_ids)
    return torch.stack([logits[place - 1, ids[place]] for place in range(first, len(ids))]).sum()


def gradients(policy: Policy) -> list[torch.Tensor]:
    collected = [p.grad.clone() for p in policy.model.parameters() if p.grad is not None]
    policy.model.zero_grad(set_to_none=True)
    return collected


def test_answer_logprobs_are_the_sums_over_the_answers_in_any_packing(policy: Policy) -> None:
    expected = [alone(policy, pair).item() for pair in halves(PAIRS)]
    for max_tokens in (1, 12, 100):
        logprobs = answer_logprobs(policy, halves(PAIRS), max_tokens=max_tokens)
        assert logprobs == pytest.approx(expected, abs=1e-4)


def test_tokens_that_the_policy_did_not_write_do_not_count(policy: Policy) -> None:
    own = Pair(prompt_token_ids=(3, 4, 5), answer=completion((6,)))
    put_in = Pair(prompt_token_ids=(3, 4), answer=completion((5, 6), mask=(0, 1)))
    first, second = answer_logprobs(policy, [own, put_in], max_tokens=64)
    assert first == pytest.approx(second, abs=1e-5)


def test_the_gradient_is_that_of_the_slow_way_in_any_packing(policy: Policy) -> None:
    pairs = with_reference(policy, PAIRS, max_tokens=64)
    with torch.no_grad():
        for parameter in policy.model.parameters():  # away from the reference, where all weights are equal
            parameter.mul_(1.2)
    sums = torch.stack([alone(policy, pair) for pair in halves(PAIRS)])
    expected = preference_loss(
        chosen_P=sums[0::2],
        rejected_P=sums[1::2],
        ref_chosen_P=torch.tensor([pair.ref_chosen for pair in pairs]),
        ref_rejected_P=torch.tensor([pair.ref_rejected for pair in pairs]),
        beta=0.7,
    ).loss_P.mean()
    torch.autograd.backward(expected)
    slow = gradients(policy)
    for max_tokens in (1, 20, 200):
        assert backward(policy, pairs, beta=0.7, max_tokens=max_tokens) == pytest.approx(
            float(expected), abs=1e-4
        )
        for ours, theirs in zip(gradients(policy), slow, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-3)


def test_both_halves_of_a_pair_stay_in_one_row_and_no_row_is_too_long_unless_a_pair_is(
    policy: Policy,
) -> None:
    pairs = with_reference(policy, PAIRS, max_tokens=64)
    assert [len(row) for row in rows_of(pairs, max_tokens=1)] == [1] * 5
    rows = list(rows_of(pairs, max_tokens=18))
    assert all(sum(pair.length for pair in row) <= 18 for row in rows)
    assert sum(len(row) for row in rows) == 5


def training_of(policy: Policy, tiny_dir: Path, **stage: Any) -> PreferenceTraining:
    config = config_with(data={"kind": "addition", "digits": 1})
    return PreferenceTraining(
        policy,
        config,
        stage_of(**stage),
        tokens=load_tokens(tiny_dir, max_new_tokens=8),
        source=make_source(config.data, seed=config.seed),
    )


def learn(training: PreferenceTraining, groups: Sequence[Group], *, stop: bool = False) -> Any:
    return training.learn(groups, version=0, report=lambda *_: None, stopped=lambda: stop)


def test_a_round_makes_right_answers_likelier_against_wrong_ones(policy: Policy, tiny_dir: Path) -> None:
    right, wrong = completion((5, 6), reward=1.0), completion((8, 9, 7), reward=0.0)
    groups = [group(wrong, right, name=f"g{i}", prompt=(3, i)) for i in range(4, 12)]
    pairs = [Pair(prompt_token_ids=(3, 5), answer=answer) for answer in (right, wrong)]
    before = answer_logprobs(policy, pairs, max_tokens=64)
    learned = learn(
        training_of(policy, tiny_dir, epochs=5, batch_size=4, learning_rate=1e-2, beta=0.5), groups
    )
    after = answer_logprobs(policy, pairs, max_tokens=64)
    assert after[0] - after[1] > before[0] - before[1] + 1
    assert learned.loss < 0.69  # log 2 is where it starts
    assert (learned.steps, learned.counts["pairs"], learned.tokens) == (10, 8, 5 * 8 * 5)
    assert [row["prompt_token_ids"] for row in learned.rows] == [[3, i] for i in range(4, 12)]


def test_spin_prefers_the_demonstration_of_the_prompt_to_the_sampled_answers(
    policy: Policy, tiny_dir: Path
) -> None:
    from dataclasses import replace

    training = training_of(policy, tiny_dir, ranked_by="demonstrations", epochs=2)
    tokens = load_tokens(tiny_dir, max_new_tokens=8)
    source = make_source(config_with(data={"kind": "addition", "digits": 1}).data, seed=0)
    groups = []
    for index in range(6):
        prompt, _ = source.demonstration(index)
        made = group(completion((40, 41)), prompt=tokens.encode(prompt), name=f"g{index}")
        groups.append(replace(made, prompt=prompt, dispatch_index=index))
    learned = learn(training, groups)
    assert learned.counts["pairs"] == 6
    assert [row["chosen"] for row in learned.rows] == [source.demonstration(i)[1] for i in range(6)]
    with pytest.raises(ValueError, match="its demonstration of"):
        learn(training, [replace(groups[0], dispatch_index=1)])


def test_the_error_of_a_round_without_pairs_has_the_reason_and_a_remedy(
    policy: Policy, tiny_dir: Path
) -> None:
    groups = [group(completion((5,)), completion((6,)))] * 3
    with pytest.raises(NothingKept, match=r"made 0 pairs of 3 groups \(3 ties\), ranked by verifier; sample"):
        learn(training_of(policy, tiny_dir), groups)


def test_with_a_least_distance_a_round_trains_on_the_most_distant_pair(
    policy: Policy, tiny_dir: Path
) -> None:
    right, slip = completion((5, 6, 7, 8), reward=1.0), completion((5, 6, 7, 9), reward=0.0)
    other = completion((20, 21, 22, 23), reward=0.0)
    learned = learn(training_of(policy, tiny_dir, least_distance=0.8), [group(slip, right, other)])
    assert [(row["rejected_token_ids"], row["distance"]) for row in learned.rows] == [([20, 21, 22, 23], 1.0)]
    nearer = learn(training_of(policy, tiny_dir), [group(slip, right, other)])
    assert [row["distance"] for row in nearer.rows] == [pytest.approx(2 / 3)]
    with pytest.raises(NothingKept, match=r"\(1 alike\), ranked by verifier; lower least_distance, sample"):
        learn(training_of(policy, tiny_dir, least_distance=0.8), [group(slip, right)])


def test_a_round_that_is_stopped_ends_before_its_next_step(policy: Policy, tiny_dir: Path) -> None:
    with pytest.raises(Interrupted):
        learn(
            training_of(policy, tiny_dir),
            [group(completion((5,), reward=1.0), completion((6,), reward=0.0))],
            stop=True,
        )


def test_a_judge_returns_the_probability_of_the_right_verdict_and_none_for_withheld_answers(
    new_policy: Callable[[], Policy], tiny_dir: Path
) -> None:
    policy, tokens = new_policy(), load_tokens(tiny_dir, max_new_tokens=8)
    judge = Judge(policy, tokens, template="{prompt}{answer}?", verdicts=("y", "n"), max_tokens_per_row=32)
    answered = completion((5,), reward=1.0)
    scores = judge.scores([group(answered, completion((6,), reward=None)), group()])
    from slipstream.records import Prompt

    question = tokens.encode(Prompt(prompt_id="q", task="t", answer="", text=f"2+2={answered.text}?"))
    verdicts = [
        float(
            alone(
                policy,
                Pair(prompt_token_ids=question, answer=unsampled_answer(tokens.encode_answer(verdict))),
            )
        )
        for verdict in ("y", "n")
    ]
    expected = 1 / (1 + torch.tensor(verdicts[1] - verdicts[0]).exp())
    assert scores[1] == []
    assert scores[0][1] is None
    assert scores[0][0] == pytest.approx(float(expected), abs=1e-5)
