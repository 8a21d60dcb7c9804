"""Which answers form a preference pair, and the counts of the answers that do not."""

import pytest
from learner.fakes import completion, group
from slipstream.learner.stages.pairs import (
    Pairs,
    check_same_prompt,
    pairs_by_score,
    pairs_with_demonstrations,
    verified_scores,
)
from slipstream.learner.stages.supervised import unsampled_answer
from slipstream.records import Completion, Prompt

BEST, WORST, MIDDLE = (
    completion((5,), reward=1.0),
    completion((6,), reward=-1.0),
    completion((7,), reward=0.5),
)
FAILED = completion((8,), reward=None)
WEIGHTS = {"exact_match": 2.0}


def test_the_best_answer_is_chosen_against_the_worst_whatever_their_order() -> None:
    groups = [group(MIDDLE, WORST, BEST), group(BEST, MIDDLE, WORST)]
    pairs = pairs_by_score(groups, verified_scores(groups, WEIGHTS))
    assert [(pair.chosen, pair.rejected) for pair in pairs.pairs] == [(BEST, WORST)] * 2
    assert pairs.counts["pairs"] == 2


def test_an_answer_that_was_not_scored_takes_no_part() -> None:
    groups = [group(BEST, FAILED)]
    assert verified_scores(groups, WEIGHTS) == [[2.0, None]]
    assert pairs_by_score(groups, verified_scores(groups, WEIGHTS)).counts["ties"] == 1


def test_a_tie_gives_no_pair_and_neither_does_a_group_without_scores() -> None:
    equal = completion((9,), reward=1.0)
    groups = [group(BEST, equal), group(FAILED, FAILED), group()]
    pairs = pairs_by_score(groups, verified_scores(groups, WEIGHTS))
    assert pairs.pairs == ()
    assert pairs.counts == {"pairs": 0, "ties": 3, "contradicted": 0, "identical": 0}


def test_a_judgement_that_the_verifier_contradicts_is_dropped_and_an_open_one_stays() -> None:
    also_right = completion((9,), reward=1.0)
    groups = [group(BEST, WORST), group(BEST, WORST), group(BEST, also_right)]
    judged = [[0.1, 0.9], [0.9, 0.1], [0.2, 0.4]]
    pairs = pairs_by_score(groups, judged, anchor="exact_match")
    assert [(pair.chosen, pair.rejected) for pair in pairs.pairs] == [(BEST, WORST), (also_right, BEST)]
    assert pairs.counts == {"pairs": 2, "ties": 0, "contradicted": 1, "identical": 0}
    assert pairs_by_score(groups, judged).counts["contradicted"] == 0


def test_the_same_tokens_judged_twice_are_no_pair() -> None:
    pairs = pairs_by_score([group(BEST, BEST)], [[0.1, 0.2]])
    assert pairs.counts["identical"] == 1
    assert pairs.pairs == ()


def test_a_demonstration_is_chosen_against_each_other_answer_once() -> None:
    demonstration = unsampled_answer((5,))
    pairs = pairs_with_demonstrations([group(BEST, WORST, WORST, FAILED)], lambda _: demonstration)
    assert [pair.rejected for pair in pairs.pairs] == [WORST, FAILED]
    assert {pair.chosen for pair in pairs.pairs} == {demonstration}
    assert pairs.counts == {"pairs": 2, "identical": 2}


def test_a_demonstration_of_another_prompt_is_refused() -> None:
    check_same_prompt(group(name="a"), Prompt(prompt_id="a", task="t", answer="1", text="?"))
    with pytest.raises(ValueError, match="is of the prompt a, and its demonstration of b"):
        check_same_prompt(group(name="a"), Prompt(prompt_id="b", task="t", answer="1", text="?"))


# 12345 is right. Of the wrong answers, 12346 shares two of four runs with it (distance 0.5) and 77888 none.
RIGHT = completion((1, 2, 3, 4, 5), reward=1.0)
SLIP = completion((1, 2, 3, 4, 6), reward=0.0)
OTHER_WAY = completion((7, 7, 8, 8, 8), reward=0.0)
HALF_RIGHT = completion((9, 9, 9, 9), reward=0.5)
ONE = {"exact_match": 1.0}


def pairs_apart(*answers: Completion, least: float | None, anchor: str | None = None) -> Pairs:
    groups = [group(*answers)]
    return pairs_by_score(groups, verified_scores(groups, ONE), anchor=anchor, least_distance=least)


def test_of_equally_good_pairs_the_most_distant_one_is_made() -> None:
    assert [pair.rejected for pair in pairs_apart(RIGHT, SLIP, OTHER_WAY, least=None).pairs] == [SLIP]
    pairs = pairs_apart(RIGHT, SLIP, OTHER_WAY, least=0.0)
    assert [(pair.chosen, pair.rejected, pair.distance) for pair in pairs.pairs] == [(RIGHT, OTHER_WAY, 1.0)]
    assert pairs.counts == {"pairs": 1, "ties": 0, "contradicted": 0, "identical": 0, "alike": 0}


def test_of_pairs_far_enough_apart_the_largest_difference_of_scores_is_made() -> None:
    assert pairs_apart(RIGHT, SLIP, HALF_RIGHT, least=0.5).pairs[0].rejected is SLIP
    assert pairs_apart(RIGHT, SLIP, HALF_RIGHT, least=0.6).pairs[0].rejected is HALF_RIGHT


def test_a_group_without_a_pair_far_enough_apart_makes_none_and_is_counted() -> None:
    pairs = pairs_apart(RIGHT, SLIP, SLIP, least=0.6)
    assert pairs.pairs == ()
    assert pairs.counts == {"pairs": 0, "ties": 0, "contradicted": 0, "identical": 0, "alike": 1}
    assert pairs_apart(RIGHT, RIGHT, least=0.6).counts["ties"] == 1


def test_a_pair_that_is_far_apart_is_still_dropped_where_the_verifier_contradicts() -> None:
    groups = [group(SLIP, RIGHT, OTHER_WAY)]
    pairs = pairs_by_score(groups, [[0.9, 0.8, 0.85]], anchor="exact_match", least_distance=0.6)
    assert pairs.counts["pairs"] == 1  # SLIP over OTHER_WAY: both are wrong, so nothing contradicts it
    pairs = pairs_by_score(groups, [[0.9, 0.2, 0.85]], anchor="exact_match", least_distance=0.5)
    assert (pairs.pairs, pairs.counts["contradicted"]) == ((), 1)


def test_an_answer_near_to_its_demonstration_is_no_pair_with_it() -> None:
    pairs = pairs_with_demonstrations(
        [group(SLIP, OTHER_WAY)], lambda _: unsampled_answer((1, 2, 3, 4, 5)), least_distance=0.6
    )
    assert [pair.rejected for pair in pairs.pairs] == [OTHER_WAY]
    assert pairs.counts == {"pairs": 1, "identical": 0, "alike": 1}
