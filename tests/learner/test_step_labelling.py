"""The file that a stage of step labels writes."""

from dataclasses import replace

import pytest
from learner.fakes import completion, group
from slipstream.config.stages import StepLabelsStage
from slipstream.learner.stages.step_labels import StepLabelling, labelled_row
from slipstream.learner.stages.supervised import Interrupted
from slipstream.learner.stages.verified import NothingKept, RoundResult
from slipstream.records import Completion, Group, Outcome, Reward, StepReward

STAGE = StepLabelsStage(name="s", kind="step_labels", samples=4, separator="\n")


def labelled(text: str, *steps: tuple[int, int, float], right: float = 1.0) -> Completion:
    """An answer whose steps are given as (characters, tokens, share)."""
    scored = tuple(StepReward(text_end=c, token_end=t, value=share) for c, t, share in steps)
    judged = Reward(name="exact_match", value=right, outcome=Outcome.SCORE, steps=scored)
    other = Reward(name="length", value=0.0, outcome=Outcome.SCORE)
    return replace(completion((5, 6, 7)), text=text, rewards=(other, judged))


def learn(*groups: Group, stopped: bool = False) -> RoundResult:
    labelling = StepLabelling(STAGE, reward="exact_match")
    return labelling.learn(groups, version=0, report=lambda *_: None, stopped=lambda: stopped)


def test_a_step_is_right_where_any_completion_behind_it_is() -> None:
    answer = labelled("so\n\nthen\n 4", (4, 1, 0.25), (9, 2, 0.0), (11, 3, 1.0))
    labels = learn(group(answer))
    assert labels.rows == [
        {
            "prompt": "2+2=",
            "completions": ["so", "then", "4"],
            "labels": [True, False, True],
            "soft_labels": [0.25, 0.0, 1.0],
            "samples": 4,
            "right": True,
            "prompt_id": "g",
            "prompt_token_ids": [3, 4],
            "token_ids": [5, 6, 7],
            "step_token_ends": [1, 2, 3],
        }
    ]
    assert labels.counts == {"completions": 1, "steps": 3, "right_steps": 2}


def test_rows_are_in_the_order_of_dispatch_and_answers_without_labels_are_counted() -> None:
    one, other = labelled("a", (1, 3, 1.0)), labelled("b", (1, 3, 0.0), right=0.0)
    bare, withheld = labelled("c"), completion((5,), reward=None)
    late = replace(group(one, bare, name="late"), dispatch_index=4)
    early = replace(group(other, withheld, name="early"), dispatch_index=1)
    labels = learn(late, early)
    assert [(row["prompt_id"], row["right"]) for row in labels.rows] == [("early", False), ("late", True)]
    assert labels.counts == {"completions": 4, "withheld": 1, "unlabelled": 1, "steps": 2, "right_steps": 1}


def test_the_error_of_a_stage_without_labels_counts_the_answers_by_outcome() -> None:
    with pytest.raises(NothingKept, match=r"labelled 0 of 2 answers \(1 withheld\).*64 \(max_steps\)"):
        learn(group(labelled("c"), completion((5,), reward=None)))


def test_a_stop_gives_the_round_up() -> None:
    with pytest.raises(Interrupted):
        learn(group(labelled("a", (1, 3, 1.0))), stopped=True)


def test_a_step_is_written_without_its_separators() -> None:
    stage = STAGE.model_copy(update={"separator": "|"})
    row = labelled_row(group(), labelled("a||b|", (3, 1, 1.0), (5, 3, 0.0)), stage, reward="exact_match")
    assert row is not None
    assert row["completions"] == ["a", "b"]
