"""Puzzles of reasoning-gym, and its own scorer as a reward."""

import asyncio
from pathlib import Path

import pytest
from slipstream.config import VerifierConfig
from slipstream.config.data import ReasoningGymData
from slipstream.config.rewards import CustomConfig
from slipstream.prompts import make_source
from slipstream.prompts.gym import score
from slipstream.records import Outcome, Prompt
from verifier.scoring import Bench, answer

pytest.importorskip("reasoning_gym")
LEGS = ReasoningGymData(task="leg_counting", parameters={"max_animals": 4}, size=200)


def test_the_same_seed_makes_the_same_puzzles_and_no_held_out_one_is_trained_on() -> None:
    one, same, other = (make_source(LEGS, seed=seed) for seed in (1, 1, 2))
    assert [one.training(i) for i in range(50)] == [same.training(i) for i in range(50)]
    assert {one.training(i).text for i in range(50)} != {other.training(i).text for i in range(50)}
    assert one.held_out_size
    held_out = {one.held_out(i).text for i in range(one.held_out_size)}
    assert not held_out & {one.training(i).text for i in range(500)}


def test_the_seed_of_the_data_takes_precedence_over_that_of_the_run() -> None:
    seeded = LEGS.model_copy(update={"seed": 7})
    texts = [{make_source(seeded, seed=seed).training(i).text for i in range(2_000)} for seed in (1, 1)]
    assert texts[0] == texts[1]
    fields = make_source(seeded, seed=1).training(0).fields["reasoning_gym"]
    assert '"seed": 7' in fields


def test_the_scorer_of_the_task_scores_answers() -> None:
    source = make_source(LEGS, seed=1)
    for index in range(20):
        prompt, written = source.demonstration(index)
        assert score(prompt, answer(written)) == 1.0
        assert score(prompt, answer(str(int(written) + 1))) < 1.0
        assert score(prompt, answer("")) < 1.0


def test_the_verifier_runs_the_scorer_in_a_child_process(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).resolve().parents[2]
    monkeypatch.setenv("PYTHONPATH", str(root / "services"))
    config = CustomConfig(name="gym", function="slipstream.prompts.gym:score", timeout_seconds=120)

    async def scored() -> list[tuple[float, Outcome]]:
        prompt, written = make_source(LEGS, seed=1).demonstration(0)
        async with Bench([config], config=VerifierConfig(workers=1)) as bench:
            vectors = await bench.scorer.score(prompt, [answer(written), answer("none")])
        return [(vector[0].value, vector[0].outcome) for vector in vectors]

    assert asyncio.run(scored()) == [(1.0, Outcome.SCORE), (0.0, Outcome.SCORE)]


def test_a_task_with_several_correct_answers_accepts_all_of_them() -> None:
    data = ReasoningGymData(task="n_queens", parameters={"n": 5, "min_remove": 3, "max_remove": 4}, size=30)
    source = make_source(data, seed=1)
    prompt, written = source.demonstration(0)
    assert score(prompt, answer(written)) == 1.0
    assert score(prompt, answer(written.replace("Q", "_"))) < 1.0


def test_unknown_tasks_and_parameters_are_errors() -> None:
    with pytest.raises(ValueError, match=r"no task 'leg_count'; did you mean `leg_counting`"):
        make_source(ReasoningGymData(task="leg_count"), seed=0)
    with pytest.raises(ValueError, match=r"leg_counting: bad parameters: .*'legs'"):
        make_source(ReasoningGymData(task="leg_counting", parameters={"legs": 3}), seed=0)
    with pytest.raises(ValueError, match=r"bad parameters: max_animals must be"):
        make_source(ReasoningGymData(task="leg_counting", parameters={"max_animals": 1}), seed=0)


def test_a_prompt_of_another_task_is_an_error_and_no_score() -> None:
    with pytest.raises(ValueError, match="is not of reasoning_gym"):
        score(Prompt(prompt_id="p", task="t", text="q", answer="1"), answer("1"))


@pytest.mark.long
def test_the_scorer_of_every_task_of_the_package_accepts_its_answers() -> None:
    from reasoning_gym.factory import DATASETS

    without_answer = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
    for task in sorted(set(DATASETS) - {"composite"}):  # "composite" has parameters without defaults
        prompt, written = make_source(ReasoningGymData(task=task, size=20), seed=1).demonstration(0)
        right, empty = score(prompt, answer(written)), score(prompt, answer(""))
        assert 0 <= empty < 1, task
        assert right == (empty if task in without_answer and not written else 1.0), task
