"""The ends of steps in a text are mapped to positions of tokens."""

from collections.abc import Sequence

from learner.fakes import completion
from slipstream.actor.steps import with_token_ends
from slipstream.records import Completion, Outcome, Reward, StepReward

PIECES = ["", "a", "bc", ".\n\n", "\n", "x" * 9, "é"]


def decode(token_ids: Sequence[int]) -> str:
    """Token 0 ends an answer and has no text."""
    return "".join(PIECES[token] for token in token_ids)


def ends(token_ids: Sequence[int], *text_ends: int) -> list[int]:
    steps = tuple(StepReward(value=0.5, text_end=end) for end in text_ends)
    reward = Reward(name="steps", value=0.5, outcome=Outcome.SCORE, steps=steps)
    plain = completion(token_ids)
    answer = Completion(
        token_ids=plain.token_ids,
        logprobs=plain.logprobs,
        mask=plain.mask,
        spans=plain.spans,
        finish_reason=plain.finish_reason,
        rewards=(reward,),
    )
    (placed,) = with_token_ends(answer, decode).rewards
    assert [step.text_end for step in placed.steps] == list(text_ends)
    return [step.token_end for step in placed.steps]


def test_a_step_ends_with_the_token_that_reaches_its_end() -> None:
    # a | bc | .\n\n | a | eos: "abc.\n\n" has six characters, and the step may end within its last token.
    assert ends((1, 2, 3, 1, 0), 6, 7) == [3, 5]
    assert ends((1, 2, 3, 1, 0), 4, 7) == [3, 5]
    assert ends((1, 6, 3, 1), 5, 6) == [3, 4]  # characters are not bytes


def test_the_last_step_ends_with_the_completion() -> None:
    assert ends((1, 2, 0, 0), 3) == [4]
    assert ends((1, 2), 1, 400) == [1, 2]


def test_steps_within_one_token_end_with_it() -> None:
    assert ends((5, 1), 2, 5, 10) == [1, 1, 2]


def test_an_answer_without_steps_is_not_decoded() -> None:
    def never(token_ids: Sequence[int]) -> str:
        raise AssertionError

    answer = completion((1, 2))
    assert with_token_ends(answer, never) is answer
