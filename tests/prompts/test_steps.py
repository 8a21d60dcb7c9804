"""An answer is split into steps at its separators."""

from itertools import pairwise

from slipstream.prompts.steps import split_steps, steps_with_ends


def test_steps_are_the_text_between_separators() -> None:
    assert split_steps(" a\n\nb b\n\n\n\n c ", "\n\n") == ["a", "b b", "c"]
    assert split_steps(" \n\n \n\n", "\n\n") == []


def test_a_step_ends_after_its_separators_and_the_last_step_at_the_end_of_the_text() -> None:
    text = "\n\n a\n\nb b\n\n\n\n c "
    steps = steps_with_ends(text, "\n\n")
    assert [step for step, _ in steps] == ["a", "b b", "c"]
    starts = [0, *(end for _, end in steps)]
    assert [text[a:b] for a, b in pairwise(starts)] == ["\n\n a\n\n", "b b\n\n\n\n", " c "]
    assert steps_with_ends("a\n\n", "\n\n") == [("a", 3)]
    assert steps_with_ends("a|b", "|") == [("a", 2), ("b", 3)]
