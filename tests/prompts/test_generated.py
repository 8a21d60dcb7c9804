"""Generated tasks: their texts, the split, and equal prompts in every process."""

import re
import subprocess
import sys
from itertools import product
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic.fields import FieldInfo
from slipstream.answers.arithmetic import check_countdown
from slipstream.config.data import AdditionData, CountdownData, GeneratedData, GeneratedTask
from slipstream.prompts import PromptSource, make_source
from slipstream.prompts.countdown import Countdown
from slipstream.prompts.digits import Addition, SortDigits
from slipstream.prompts.generated import HELD_OUT_LIMIT, GeneratedSource, Puzzle
from slipstream.records import Prompt

TASKS: tuple[type[GeneratedTask], ...] = get_args(GeneratedTask)


def ends(field: FieldInfo) -> list[Any]:
    """Return the least and the most that a key may be, as its Field says; else its default."""
    bounds = [getattr(part, end) for part in field.metadata for end in ("ge", "le") if hasattr(part, end)]
    return bounds or [field.get_default(call_default_factory=True)]


def forms(task: type[GeneratedTask]) -> list[GeneratedTask]:
    """Return a task with its defaults, and with each of its keys at the least and at the most."""
    own = {key: field for key, field in task.model_fields.items() if key not in GeneratedData.model_fields}
    values = product(*map(ends, own.values()))
    return [task(), *(task(**dict(zip(own, each, strict=True))) for each in values)]


ALL: list[GeneratedTask] = [form for task in TASKS for form in forms(task)]


def texts(source: PromptSource, count: int) -> list[str]:
    return [source.training(i).text for i in range(count)] + [source.held_out(i).text for i in range(count)]


def same_puzzle(prompt: Prompt) -> tuple[str, ...]:
    """Return the answer and the sorted numbers of a prompt, which are equal for any order of the numbers."""
    return (prompt.answer, *sorted(re.findall(r"[0-9]+", prompt.text)))


def test_an_addition_of_two_digits_reads_as_documented() -> None:
    puzzle = Addition(digits=2).at(2 * 90 + 24)
    assert (puzzle.text, puzzle.answer, puzzle.demonstration) == ("12+34=", "46", "46")


@pytest.mark.parametrize("digits", [1, 2, 12])
def test_addition_numbers_have_exactly_the_configured_digits(digits: int) -> None:
    task = Addition(digits=digits)
    for number in (0, task.space // 3, task.space - 1):
        a, b = task.at(number).text.removesuffix("=").split("+")
        assert len(a) == len(b) == digits
        assert task.at(number).answer == str(int(a) + int(b))


def test_sorting_reads_as_documented() -> None:
    puzzle = SortDigits(length=4).at(5391)
    assert (puzzle.text, puzzle.answer, puzzle.demonstration) == ("sort 5 3 9 1:", "1359", "1359")


def test_sorting_keeps_leading_zeros() -> None:
    assert SortDigits(length=4).at(20).answer == "0002"


@settings(max_examples=300, deadline=None)
@given(st.integers(2, 6), st.integers(2, 99), st.integers(0, 10**30))
def test_every_countdown_demonstration_reaches_its_positive_target(
    count: int, largest: int, number: int
) -> None:
    task = Countdown(count=count, largest=largest)
    puzzle = task.at(number % task.space)
    numbers = [int(word) for word in puzzle.fields["numbers"].split()]
    assert len(numbers) == count
    assert all(1 <= value <= largest for value in numbers)
    assert int(puzzle.answer) > 0
    assert puzzle.text == f"{puzzle.answer} from {puzzle.fields['numbers']}:"
    assert check_countdown(puzzle.demonstration, numbers, int(puzzle.answer))


def test_some_countdown_demonstrations_have_divisions_and_parentheses() -> None:
    source = make_source(CountdownData(), seed=0)
    answers = "".join(source.demonstration(i)[1] for i in range(500))
    assert set("+-*/()") <= set(answers)


@pytest.mark.parametrize("data", ALL, ids=repr)
def test_no_held_out_puzzle_is_ever_trained_on_in_any_order_of_its_numbers(data: GeneratedTask) -> None:
    source, other_seed = make_source(data, seed=3), make_source(data, seed=4)
    trained = {
        same_puzzle(s.training(i)): s.training(i).text for s in (source, other_seed) for i in range(2000)
    }
    held_out = (source.held_out(i) for i in range(1000))
    revealed = {
        prompt.text: trained[same_puzzle(prompt)] for prompt in held_out if same_puzzle(prompt) in trained
    }
    assert revealed == {}, (
        "these held-out prompts have the numbers and the answer of a training prompt, in another order: give "
        "such puzzles the same `canonical`, for example the answer and the sorted numbers"
    )


@pytest.mark.parametrize("data", [data for data in ALL if data.distinct_prompts <= 200], ids=repr)
def test_a_small_task_has_the_declared_number_of_prompts(data: GeneratedTask) -> None:
    source = make_source(data, seed=0)
    assert source.held_out_size is not None
    held_out = {source.held_out(i).text for i in range(source.held_out_size)}
    prompts = held_out | {source.training(i).text for i in range(5000)}
    assert data.distinct_prompts <= len(prompts) <= 100 * data.distinct_prompts


def test_both_orders_of_a_sum_are_on_the_same_side() -> None:
    source = make_source(AdditionData(digits=1), seed=0)
    assert source.held_out_size is not None
    held_out = {source.held_out(i).text for i in range(source.held_out_size)}
    assert {f"{text[2]}+{text[0]}=" for text in held_out} == held_out


@pytest.mark.parametrize("data", ALL, ids=repr)
def test_held_out_prompts_are_distinct_up_to_their_number_and_then_repeat(data: GeneratedTask) -> None:
    source = make_source(data, seed=0)
    last = source.held_out(5000)
    size = source.held_out_size
    assert size is not None
    assert len({source.held_out(i).text for i in range(size)}) == size
    assert last == source.held_out(5000 % size)


def test_a_large_task_holds_out_as_many_prompts_as_the_limit() -> None:
    assert make_source(AdditionData(digits=6), seed=0).held_out_size == HELD_OUT_LIMIT


def test_two_digit_addition_holds_out_about_a_tenth_of_its_8100_prompts() -> None:
    size = make_source(AdditionData(), seed=0).held_out_size
    assert size is not None
    assert 650 < size < 970


@pytest.mark.parametrize("data", ALL, ids=repr)
def test_a_prompt_depends_on_its_index_and_not_on_earlier_calls(data: GeneratedTask) -> None:
    first, second = make_source(data, seed=7), make_source(data, seed=7)
    assert second.held_out_size is not None
    backwards = [second.held_out(i) for i in reversed(range(50))]
    assert [first.held_out(i) for i in range(50)] == backwards[::-1]
    assert [first.training(i) for i in (9, 2, 9)] == [second.training(i) for i in (9, 2, 9)]
    assert first.demonstration(5)[0] == second.training(5)


def test_another_seed_gives_other_prompts() -> None:
    assert texts(make_source(AdditionData(), seed=0), 50) != texts(make_source(AdditionData(), seed=1), 50)


@pytest.mark.parametrize("data", ALL, ids=repr)
def test_prompts_are_printable_ascii(data: GeneratedTask) -> None:
    source = make_source(data, seed=0)
    for index in range(100):
        prompt, answer = source.demonstration(index)
        assert all(" " <= character <= "~" for character in prompt.text + prompt.answer + answer)


def test_other_processes_with_other_hash_seeds_give_the_same_prompts() -> None:
    program = (
        "from typing import get_args\n"
        "from slipstream.config.data import GeneratedTask; from slipstream.prompts import make_source\n"
        "for task in get_args(GeneratedTask):\n"
        "    source = make_source(task(), seed=11)\n"
        "    print([(source.training(i), source.held_out(i), source.demonstration(i)) for i in range(20)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": "services"},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_the_prompts_of_a_seed_do_not_change_between_releases() -> None:
    source = make_source(AdditionData(), seed=0)
    assert [source.training(i).text for i in range(3)] == ["90+97=", "25+14=", "33+59="]


class Dice:
    """A task of `sides` puzzles."""

    name = "dice"

    def __init__(self, sides: int) -> None:
        self.space = sides

    def at(self, number: int) -> Puzzle:
        return Puzzle(text=f"{number}?", answer="1", canonical=f"{number}?", demonstration="1")


def test_a_task_of_one_prompt_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="dice: too few distinct prompts to hold any out"):
        GeneratedSource(Dice(1), seed=0)


@pytest.mark.parametrize("sides", range(2, 30))
def test_a_task_of_two_prompts_or_more_has_both_sides(sides: int) -> None:
    source = GeneratedSource(Dice(sides), seed=0)
    assert source.held_out_size is not None
    assert 1 <= source.held_out_size < sides
    assert source.held_out(0).text not in {source.training(i).text for i in range(100)}
