"""The answers that a round keeps and trains on, and the conversion of another model's answers."""

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import torch
from learner.fakes import TINY, completion, config_with, group
from slipstream.actor.sampling_modes import CandidateSampling
from slipstream.config import parse_config
from slipstream.config.data import MixtureData, SortDigitsData
from slipstream.config.stages import DemonstrationMix, RejectionSamplingStage
from slipstream.learner.policy.model import Policy
from slipstream.learner.policy.tiny import make_tiny_model
from slipstream.learner.stage import same_tokens, training_of
from slipstream.learner.stages.answer_logprobs import answer_logprobs
from slipstream.learner.stages.demonstrations import DemonstrationSampler
from slipstream.learner.stages.rounds import Training
from slipstream.learner.stages.supervised import (
    Fitting,
    Interrupted,
    NotFinite,
    Pair,
    epochs_of,
    fit,
    steps_of,
    unsampled_answer,
)
from slipstream.learner.stages.verified import (
    NothingKept,
    RoundResult,
    VerifiedTraining,
    keep_verified,
    translation,
)
from slipstream.prompts import make_source
from slipstream.records import Completion, FinishReason
from slipstream.tokens import load_tokens

RIGHT, ALSO, WRONG = completion((5, 6)), completion((7,)), completion((8,), reward=0.0)
CUT_OFF = replace(completion((9, 9)), finish_reason=FinishReason.LENGTH)
FAILED = completion((4,), reward=None)


def test_distinct_right_answers_that_ended_are_kept_and_all_others_counted() -> None:
    kept, counts = keep_verified(
        [group(RIGHT, WRONG, RIGHT, CUT_OFF, FAILED, ALSO), group(RIGHT, name="other")],
        reward="exact_match",
        least=1.0,
        per_prompt=None,
    )
    assert [(of.group_id, answer) for of, answer in kept] == [("g", RIGHT), ("g", ALSO), ("other", RIGHT)]
    assert counts == {"completions": 7, "wrong": 1, "repeated": 1, "cut_off": 1, "withheld": 1}


def test_a_prompt_that_comes_twice_still_keeps_no_more_than_it_may() -> None:
    kept, counts = keep_verified(
        [group(RIGHT, ALSO), group(ALSO)], reward="exact_match", least=1.0, per_prompt=1
    )
    assert [answer for _, answer in kept] == [RIGHT]
    assert counts["repeated"] == 2


def scored(tokens: tuple[int, ...], right: float, style: float) -> Completion:
    (own,) = completion(tokens, reward=right).rewards
    return replace(completion(tokens), rewards=(own, replace(own, name="style", value=style)))


def test_the_best_answers_of_a_prompt_are_kept_by_the_weighted_sum_of_their_rewards() -> None:
    # exact_match + 0.5 style: 1.0, 1.4, 0.9, 1.4 (the same answer again), 0.3, 1.2
    first = group(scored((1,), 1, 0.0), scored((2,), 1, 0.8), scored((3,), 0, 1.8))
    again = group(scored((2,), 1, 0.8), scored((4,), 0, 0.6), scored((5,), 1, 0.4), FAILED)
    other = group(scored((6,), 0, 0.2), name="other")
    weights = {"exact_match": 1.0, "style": 0.5}

    def kept(least: float | None, most: int) -> tuple[list[tuple[int, ...]], dict[str, int]]:
        kept_answers, counts = keep_verified(
            [first, other, again], reward="exact_match", least=least, per_prompt=most, best_by=weights
        )
        return [answer.token_ids for _, answer in kept_answers], counts

    assert kept(1.0, 2) == (
        [(2,), (5,)],
        {"completions": 8, "wrong": 3, "repeated": 1, "worse": 1, "withheld": 1},
    )
    assert kept(None, 3)[0] == [(2,), (5,), (1,), (6,)]
    assert kept(None, 1)[0] == [(2,), (6,)]


def test_of_answers_that_are_equally_good_the_first_is_kept() -> None:
    kept, _ = keep_verified(
        [group(WRONG, ALSO, RIGHT)],
        reward="exact_match",
        least=None,
        per_prompt=1,
        best_by={"exact_match": 1},
    )
    assert [answer for _, answer in kept] == [ALSO]


def test_a_round_of_the_best_trains_on_them(policy: Policy) -> None:
    worse, better = completion((5, 6), reward=0.2), completion((7,), reward=0.4)
    learned = training(policy, keep="best", keep_per_prompt=1, least_reward=None).learn(
        [group(worse, better)], version=0, report=lambda *_: None, stopped=lambda: False
    )
    assert [row["token_ids"] for row in learned.rows] == [[7]]
    assert learned.counts == {"completions": 2, "worse": 1, "kept": 1}
    with pytest.raises(NothingKept, match=r"kept 0 of 1 answers \(1 cut_off\): none has a score and an end"):
        training(policy, keep="best", keep_per_prompt=1, least_reward=None).learn(
            [group(CUT_OFF)], version=0, report=lambda *_: None, stopped=lambda: False
        )


def training(policy: Policy, **options: object) -> VerifiedTraining:
    settings = {"name": "s", "kind": "rejection_sampling", "learning_rate": 1e-2, **options}
    (stage,) = parse_config({"stages": [settings]}).stages
    assert isinstance(stage, RejectionSamplingStage)
    return VerifiedTraining(policy, config_with(), stage)


def test_a_round_makes_the_kept_answers_likelier(policy: Policy) -> None:
    pairs = [Pair(prompt_token_ids=(3, 4), answer=answer) for answer in (RIGHT, WRONG)]
    before = answer_logprobs(policy, pairs, max_tokens=64)
    steps = []
    learned = training(policy, epochs=4, batch_size=1).learn(
        [group(RIGHT, WRONG)], version=0, report=lambda *step: steps.append(step[:2]), stopped=lambda: False
    )
    after = answer_logprobs(policy, pairs, max_tokens=64)
    assert after[0] > before[0] + 1
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert (learned.steps, learned.tokens, learned.counts["kept"]) == (4, 8, 1)
    assert learned.rows[0]["token_ids"] == [5, 6]


MIX = {"data": {"kind": "sort_digits", "length": 2}, "share": 0.25}


def mixing(policy: Policy, tiny_dir: Path, **options: object) -> Training:
    """The training of a stage that mixes demonstrations in, wired as the stage's program does it."""
    stage = {"name": "s", "kind": "rejection_sampling", "learning_rate": 1e-2, "groups": 8, **options}
    config = config_with(model={"path": str(tiny_dir)}, stages=[stage])
    (only,) = config.stages
    assert isinstance(only, RejectionSamplingStage)
    return training_of(policy, config, only)


def learn(training: Training, version: int, answers: int) -> RoundResult:
    groups = [group(completion((5, 6 + i)), name=f"g{i}", prompt=(3, 4 + i)) for i in range(answers)]
    return training.learn(groups, version=version, report=lambda *_: None, stopped=lambda: False)


def demonstrated(learned: RoundResult) -> list[object]:
    return [row["prompt"] for row in learned.rows if row["origin"] == "demonstration"]


def test_demonstrations_are_mixed_in_by_their_share_and_counted(policy: Policy, tiny_dir: Path) -> None:
    learned = learn(mixing(policy, tiny_dir, mix=MIX, epochs=2, batch_size=3), 0, 6)
    # Two demonstrations beside six answers of two tokens; each is two digits and the end of sequence.
    assert learned.counts == {
        "completions": 6,
        "kept": 6,
        "demonstrations": 2,
        "kept_tokens": 12,
        "demonstration_tokens": 6,
    }
    assert (learned.steps, learned.tokens) == (2 * 3, 2 * (12 + 6))
    assert [row["origin"] for row in learned.rows] == ["sampled"] * 6 + ["demonstration"] * 2
    source = make_source(SortDigitsData(length=2), seed=0)
    assert [(row["prompt"], row["answer"]) for row in learned.rows[6:]] == [
        (prompt.text, text) for prompt, text in map(source.demonstration, range(2))
    ]


def test_a_round_done_again_mixes_in_the_same_and_the_next_round_others(
    new_policy: Callable[[], Policy], tiny_dir: Path
) -> None:
    first, again, later = (
        learn(mixing(new_policy(), tiny_dir, mix=MIX), version, 6) for version in (1, 1, 2)
    )
    assert demonstrated(first) == demonstrated(again)
    assert first.loss == again.loss
    assert not set(demonstrated(first)) & set(demonstrated(later))


def test_mixed_in_demonstrations_are_learned(policy: Policy, tiny_dir: Path) -> None:
    stage = mixing(policy, tiny_dir, mix={**MIX, "share": 0.5}, epochs=8, batch_size=4)
    tokens = load_tokens(tiny_dir, max_new_tokens=8)
    prompt, text = make_source(SortDigitsData(length=2), seed=0).demonstration(0)
    pairs = [
        Pair(prompt_token_ids=tokens.encode(prompt), answer=unsampled_answer(tokens.encode_answer(text)))
    ]
    before = answer_logprobs(policy, pairs, max_tokens=64)
    learn(stage, 0, 4)
    assert answer_logprobs(policy, pairs, max_tokens=64)[0] > before[0] + 1


def test_candidates_of_one_generation_are_kept_and_trained_on_behind_the_prompt_itself(
    policy: Policy, tiny_dir: Path
) -> None:
    tokens = load_tokens(tiny_dir, max_new_tokens=8)
    client, prompt = CandidateSampling(candidates=3, tokens=tokens), group(name="g0").prompt
    stated = replace(completion((5, 6, 7)), text="<answer>4</answer><answer>22</answer><answer>4</answer>")
    answers = [
        replace(answer, rewards=completion((5,), reward=float(answer.text == "4")).rewards)
        for answer in client.completions(prompt, stated)
    ]
    made = replace(group(*answers, name="g0"), prompt_token_ids=tokens.encode(client.trained_prompt(prompt)))
    pair = Pair(prompt_token_ids=tokens.encode(prompt), answer=unsampled_answer(tokens.encode_answer("4")))
    before = answer_logprobs(policy, [pair], max_tokens=64)
    learned = training(policy, epochs=4).learn(
        [made], version=0, report=lambda *_: None, stopped=lambda: False
    )
    assert learned.counts == {"completions": 3, "wrong": 1, "repeated": 1, "kept": 1}
    assert [row["prompt_token_ids"] for row in learned.rows] == [list(tokens.encode(prompt))]
    assert [row["token_ids"] for row in learned.rows] == [list(tokens.encode_answer("4"))]
    assert answer_logprobs(policy, [pair], max_tokens=64)[0] > before[0] + 1


def test_a_demonstration_that_does_not_fit_the_context_is_left_out_and_counted(tiny_dir: Path) -> None:
    tight = load_tokens(tiny_dir, max_new_tokens=64 - len("sort 1 2:"))
    data = MixtureData(of=(SortDigitsData(length=2), SortDigitsData(length=9)))
    source = make_source(data, seed=0)
    mixed = DemonstrationSampler(
        DemonstrationMix(data=data, share=0.5), source=source, tokens=tight, most_answers=4
    )
    drawn = mixed.draw(0, answers=4)
    assert (len(drawn.pairs), len(drawn.rows), drawn.unfit) == (2, 2, 2)


def test_without_a_mix_nothing_is_added(policy: Policy, tiny_dir: Path) -> None:
    learned = learn(mixing(policy, tiny_dir), 0, 3)
    assert learned.counts == {"completions": 3, "kept": 3}
    assert demonstrated(learned) == []


def test_the_error_of_a_round_that_keeps_nothing_has_counts_reason_and_remedy(policy: Policy) -> None:
    with pytest.raises(NothingKept) as refused:
        training(policy).learn(
            [group(WRONG, CUT_OFF)] * 2, version=0, report=lambda *_: None, stopped=lambda: False
        )
    message = str(refused.value)
    assert "kept 0 of 4 answers (2 wrong, 2 cut_off): none has exact_match >= 1" in message
    assert "lower least_reward" in message


def test_epochs_show_each_item_once_and_in_another_order_each_time() -> None:
    batches = list(epochs_of(range(10), batch_size=4, epochs=2, seed=1))
    assert [len(batch) for batch in batches] == [4, 4, 2, 4, 4, 2]
    assert len(batches) == steps_of(10, batch_size=4, epochs=2)
    first, second = list(chain(*batches[:3])), list(chain(*batches[3:]))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_fitting_is_the_mean_over_the_tokens_of_a_batch_whatever_the_rows(new_policy) -> None:
    batch = [Pair(prompt_token_ids=(3, 4), answer=unsampled_answer((5, 6, 7)[: 1 + i % 3])) for i in range(7)]
    weights = []
    for max_tokens in (1, 12, 200):
        policy, losses = new_policy(), []
        settings = Fitting(steps=2, learning_rate=1e-2, max_tokens_per_row=max_tokens)
        fit(policy, [batch, batch], settings, report=lambda _, __, loss, seen=losses: seen.append(loss))
        start = new_policy()
        total = -sum(answer_logprobs(start, batch, max_tokens=64)) / sum(
            len(p.answer.token_ids) for p in batch
        )
        assert losses[0] == pytest.approx(total, abs=1e-5)
        assert losses[1] < losses[0]
        weights.append(policy.model.lm_head.weight.detach())
    for other in weights[1:]:
        torch.testing.assert_close(other, weights[0], atol=1e-4, rtol=1e-3)


def test_fitting_stops_between_steps_and_never_takes_a_step_that_is_not_finite(policy: Policy) -> None:
    batch = [Pair(prompt_token_ids=(3,), answer=unsampled_answer((5,)))]
    settings = Fitting(steps=3, learning_rate=1e-2, max_tokens_per_row=64)
    done: list[int] = []
    with pytest.raises(Interrupted):
        fit(
            policy, [batch] * 3, settings, report=lambda n, *_: done.append(n), stopped=lambda: len(done) == 1
        )
    assert done == [1]
    with torch.no_grad():
        policy.model.model.norm.weight[0] = float("nan")
    before = policy.model.lm_head.weight.clone()
    with pytest.raises(NotFinite, match="step 1: loss nan"):
        fit(policy, [batch], settings, report=lambda *_: None)
    assert torch.equal(policy.model.lm_head.weight, before)


def test_another_models_answer_keeps_its_tokens_or_goes_through_its_text(tiny_dir: Path) -> None:
    tokens = load_tokens(tiny_dir, max_new_tokens=8)
    made, answer = group(RIGHT), replace(RIGHT, text="46")
    by_ids = translation(tokens, same_tokens=True)(made, answer)
    by_text = translation(tokens, same_tokens=False)(made, answer)
    assert by_ids is not None
    assert by_text is not None
    assert by_ids.prompt_token_ids == by_text.prompt_token_ids == tokens.encode(made.prompt)
    assert by_ids.answer.token_ids == (5, 6)
    assert by_text.answer.token_ids == tokens.encode_answer("46")
    long = replace(made, prompt=replace(made.prompt, text="1" * 100))
    assert translation(tokens, same_tokens=True)(long, answer) is None


def test_token_ids_are_the_same_only_where_tokenizer_and_end_of_answer_are(
    tiny_dir: Path, tmp_path: Path
) -> None:
    make_tiny_model(TINY, tmp_path / "twin", seed=9)
    ours = (tiny_dir, load_tokens(tiny_dir, max_new_tokens=8))
    assert same_tokens(ours, (tmp_path / "twin", load_tokens(tmp_path / "twin", max_new_tokens=8)))
    file = tmp_path / "twin" / "tokenizer.json"
    file.write_text(file.read_text().replace('"<unk>": 2', '"<other>": 2').replace('"<unk>"', '"<other>"'))
    assert not same_tokens(ours, (tmp_path / "twin", ours[1]))
    file.unlink()
    assert not same_tokens(ours, (tmp_path / "twin", ours[1]))
