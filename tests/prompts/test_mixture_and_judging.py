"""A mixture takes its tasks in turn; the data `judging` asks which answers of a task are right."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from slipstream.config import ConfigError, parse_config
from slipstream.config.checks import check_config
from slipstream.config.data import JudgingData, MixtureData
from slipstream.prompts import make_source
from slipstream.prompts.judging import change_one_digit, fill_template

ADDITION = {"kind": "addition", "digits": 1}
SORTING = {"kind": "sort_digits", "length": 3}


def mixture(*of: dict[str, object]) -> MixtureData:
    return MixtureData.model_validate({"kind": "mixture", "of": of})


def judging(**fields: object) -> JudgingData:
    return JudgingData.model_validate({"kind": "judging", "of": ADDITION, **fields})


def test_a_mixture_takes_its_tasks_in_turn_and_the_prompts_of_each_in_order() -> None:
    source = make_source(mixture(ADDITION, SORTING), seed=3)
    first, second = (
        make_source(mixture(ADDITION, ADDITION).of[0], seed=3),
        make_source(mixture(SORTING, SORTING).of[0], seed=3),
    )
    assert [source.training(i) for i in range(6)] == [
        replace(prompt, source=prompt.task)
        for i in range(3)
        for prompt in (first.training(i), second.training(i))
    ]
    assert source.held_out(5) == replace(second.held_out(2), source="sort_digits")
    prompt, text = first.demonstration(2)
    assert source.demonstration(4) == (replace(prompt, source="addition"), text)
    assert first.held_out_size is not None
    assert second.held_out_size is not None
    assert source.held_out_size == 2 * min(first.held_out_size, second.held_out_size)


def test_no_held_out_prompt_of_a_mixture_is_trained_on() -> None:
    source = make_source(mixture(ADDITION, SORTING), seed=0)
    held_out = {source.held_out(i).prompt_id for i in range(source.held_out_size or 0)}
    assert not held_out & {source.training(i).prompt_id for i in range(2000)}


def test_a_mixture_with_a_task_that_a_reward_cannot_score_is_an_error() -> None:
    data = {"kind": "mixture", "of": [{"kind": "countdown"}, ADDITION]}
    config = parse_config(
        {"data": data, "rewards": [{"name": "countdown"}], "evaluation": {"reward": "countdown"}}
    )
    assert "cannot judge answers of the data `addition`" in str(check_config(config)[0])


def test_a_mixture_resumes_each_source_at_the_prompt_where_it_was() -> None:
    data = mixture(
        {**ADDITION, "share": 0.7}, {**SORTING, "share": 0.2, "name": "sorting"}, {**SORTING, "share": 0.1}
    )
    uninterrupted = list(map(make_source(data, seed=3).training, range(60)))
    for stop in (1, 17, 40):
        assert list(map(make_source(data, seed=3).training, range(stop, 60))) == uninterrupted[stop:]
    alone = make_source(data.of[1], seed=3)
    of_source = [prompt for prompt in uninterrupted if prompt.source == "sorting"]
    assert len(of_source) in (11, 12, 13)
    assert [prompt.text for prompt in of_source] == [alone.training(i).text for i in range(len(of_source))]


def test_prompt_ids_differ_between_sources_with_the_same_prompts() -> None:
    source = make_source(mixture(ADDITION, ADDITION, {**ADDITION, "name": "sums"}), seed=3)
    prompts = [source.training(i) for i in range(3)]
    assert [prompt.source for prompt in prompts] == ["addition", "addition_2", "sums"]
    assert len({prompt.text for prompt in prompts}) == 1
    assert len({prompt.prompt_id for prompt in prompts}) == 3


def test_held_out_prompts_have_the_shares_and_end_before_a_source_repeats() -> None:
    source = make_source(mixture({**ADDITION, "share": 3}, SORTING), seed=0)
    size = source.held_out_size or 0
    prompts = [source.held_out(i) for i in range(size)]
    assert len({prompt.prompt_id for prompt in prompts}) == size
    shares = Counter(prompt.source for prompt in prompts)
    assert abs(shares["addition"] - 0.75 * size) < 1


@pytest.mark.parametrize("of", [[ADDITION], [{"kind": "mixture", "of": [ADDITION, SORTING]}, ADDITION]])
def test_a_mixture_of_one_task_or_of_mixtures_is_an_error(of: list[object]) -> None:
    with pytest.raises(ConfigError, match=r"data\.of"):
        parse_config({"data": {"kind": "mixture", "of": of}})


def test_judging_asks_about_right_and_wrong_answers_and_knows_which_is_right() -> None:
    data = judging(prompt="is {prompt}{answer} right? ", answers=["y", "n"])
    source, task = make_source(data, seed=1), make_source(data.of, seed=1)
    counts = {"y": 0, "n": 0}
    for index in range(400):
        question, answer = source.demonstration(index)
        prompt = task.training(index)
        right = question.text == f"is {prompt.text}{prompt.answer} right? "
        assert answer == question.answer == ("y" if right else "n")
        assert question.text.startswith(f"is {prompt.text}")
        counts[answer] += 1
    assert 150 < counts["y"] < 250
    assert source.training(7) == source.training(7)


def test_judging_asks_about_held_out_prompts_only_in_evaluation() -> None:
    data = judging()
    source, task = make_source(data, seed=1), make_source(data.of, seed=1)
    assert source.held_out_size == task.held_out_size
    assert source.held_out(2).text.startswith(task.held_out(2).text)


def test_a_changed_answer_differs_in_one_digit() -> None:
    for seed in range(50):
        other = change_one_digit("10 + 25", Random(seed))
        assert sum(a != b for a, b in zip(other, "10 + 25", strict=True)) == 1
        assert other.replace("0", "").count("+") == 1


def test_braces_inside_a_prompt_or_answer_are_not_placeholders() -> None:
    assert (
        fill_template("{prompt}|{answer}", prompt="a {answer}", answer="b {prompt}")
        == "a {answer}|b {prompt}"
    )
    assert fill_template("{answer}|{prompt}", prompt="p", answer="a") == "a|p"
