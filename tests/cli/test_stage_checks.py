"""`slipstream validate` checks every stage with its own configuration, and errors name the stage."""

import json
from pathlib import Path
from typing import Any

import pytest
from slipstream.cli.errors import UsageError
from slipstream.cli.validate import find_problems, validate_command
from slipstream.config import load_config, parse_config
from slipstream.prompts import make_source

TINY = {"tiny": {"layers": 1, "width": 32, "heads": 1, "max_tokens": 32}}


def problems(*stages: dict[str, Any], **tree: Any) -> list[str]:
    named = [{"name": f"s{place}", **stage} for place, stage in enumerate(stages)]
    config = parse_config({"model": TINY, "stages": named, **tree})
    return [str(p) for p in find_problems(config, gpus="note") if p.severity == "error"]


def test_valid_stages_have_no_problem() -> None:
    assert problems({"kind": "supervised"}, {"kind": "rl"}, {"kind": "preference"}) == []


@pytest.mark.parametrize("example", ["r1_recipe", "self_play"])
def test_the_examples_are_valid(example: str) -> None:
    config = load_config(Path(__file__).parents[2] / "examples" / f"{example}.yaml")
    assert len(config.stages) == 4
    assert [problem for problem in find_problems(config, gpus="note") if problem.severity == "error"] == []


def test_a_problem_of_a_stage_is_reported_once_with_its_name() -> None:
    bad = {"kind": "rl", "set": {"rollout.max_new_tokens": 30}}
    problems_found = problems({"kind": "rl"}, bad, bad)
    assert len(problems_found) == 1
    assert problems_found[0].startswith("stages[1].rollout.max_new_tokens: ")


def test_a_preference_pair_needs_two_answers_or_an_answer_and_a_demonstration() -> None:
    one = {"set": {"rollout.group_size": 1}, "kind": "preference"}
    assert problems({**one, "ranked_by": "demonstrations"}) == []
    (problem,) = problems(one)
    assert problem.startswith("stages[0].rollout.group_size: is 1, and a pair is made of two answers")


def test_two_answers_make_one_pair_whatever_their_distance() -> None:
    two = {"set": {"rollout.group_size": 2}, "kind": "preference"}
    assert problems({**two, "least_distance": 0.1}) == []
    assert problems({"kind": "preference", "least_distance": 0}) == []
    (problem,) = problems({**two, "least_distance": 0})
    assert problem.startswith("stages[0].least_distance: is 0, which has no effect on two answers")


@pytest.mark.parametrize(
    "stage", [{"kind": "supervised"}, {"kind": "preference", "ranked_by": "demonstrations"}]
)
def test_answers_that_are_only_targets_are_no_demonstrations(tmp_path: Path, stage: dict[str, Any]) -> None:
    rows = [{"prompt": f"{n} from 1 2:", "answer": n, "numbers": "1 2"} for n in range(20)]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    tree = {
        "data": {"kind": "file", "path": str(file), "held_out_fraction": 0.5},
        "rewards": [{"name": "countdown"}],
        "evaluation": {"reward": "countdown", "prompts": 1},
    }
    (problem,) = problems(stage, **tree)
    assert "needs demonstrations" in problem
    assert problem.startswith("stages[0].data: ")
    assert problems({"kind": "rejection_sampling"}, **tree) == []


def test_a_column_of_expressions_makes_such_rows_demonstrations(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"{n} from {n} 2:", "answer": n, "numbers": f"{n} 2", "way": str(n)} for n in range(20)
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    data = {"kind": "file", "path": str(file), "held_out_fraction": 0.5, "demonstration_column": "way"}
    rewards = {"rewards": [{"name": "countdown"}], "evaluation": {"reward": "countdown", "prompts": 1}}
    assert problems({"kind": "supervised"}, data=data, **rewards) == []


def test_a_selection_of_the_best_answers_has_to_leave_some_out() -> None:
    stage = {"kind": "rejection_sampling", "keep": "best", "least_reward": None, "keep_per_prompt": 4}
    (problem,) = problems(stage, rollout={"group_size": 4})
    assert problem.startswith("stages[0].keep_per_prompt: is 4, and a prompt has 4 answers")
    assert problems(stage, rollout={"group_size": 8}) == []
    assert problems({**stage, "least_reward": 1.0}, rollout={"group_size": 4}) == []


def mixed_in(file: Path, *rows: dict[str, Any], **data: Any) -> dict[str, Any]:
    file.write_text("\n".join(map(json.dumps, rows)))
    mix = {"data": {"kind": "file", "path": str(file), "held_out_fraction": 0.5, **data}, "share": 0.25}
    return {"kind": "rejection_sampling", "mix": mix}


def test_demonstrations_are_mixed_in_from_a_task_or_a_file(tmp_path: Path) -> None:
    rows = [{"prompt": f"say {n}:", "answer": str(n)} for n in range(20)]
    assert problems(mixed_in(tmp_path / "rows.jsonl", *rows)) == []
    assert (
        problems({"kind": "rejection_sampling", "mix": {"data": {"kind": "countdown"}, "share": 0.1}}) == []
    )


def test_demonstrations_that_cannot_be_trained_on_are_named(tmp_path: Path) -> None:
    (missing,) = problems(
        {"kind": "rejection_sampling", "mix": {"data": {"kind": "file", "path": "/no/rows"}, "share": 0.1}}
    )
    assert missing.startswith("stages[0].mix.data: /no/rows")
    rows = [{"prompt": f"sag {n} für", "answer": str(n)} for n in range(20)]
    (strange,) = problems(mixed_in(tmp_path / "rows.jsonl", *rows))
    assert strange.startswith("stages[0].mix.data: prompt rows.jsonl:")
    assert "'ü'" in strange
    rows = [{"prompt": f"{n} from 1 2:", "answer": n, "numbers": "1 2"} for n in range(20)]
    (target,) = problems(
        mixed_in(tmp_path / "rows.jsonl", *rows),
        data={"kind": "countdown"},
        rewards=[{"name": "countdown"}],
        evaluation={"reward": "countdown"},
    )
    assert "has rows of countdown without a demonstration_column" in target


def test_demonstrations_of_held_out_prompts_are_refused(tmp_path: Path) -> None:
    source = make_source(parse_config({}).data, seed=0)
    held_out_prompts = [source.held_out(index) for index in range(3)]
    rows = [{"prompt": prompt.text, "answer": prompt.answer} for prompt in held_out_prompts]
    others = [{"prompt": f"say {n}:", "answer": str(n)} for n in range(20)]
    apart = tmp_path / "held_out.jsonl"
    apart.write_text(json.dumps(others[0]))
    (problem,) = problems(mixed_in(tmp_path / "rows.jsonl", *rows, *others, held_out_path=str(apart)))
    assert problem.startswith(
        "stages[0].mix.data: demonstrates 3 of the prompts that the evaluation holds out"
    )
    apart.write_text("\n".join(map(json.dumps, rows)))
    assert problems(mixed_in(tmp_path / "rows.jsonl", *rows, *others, held_out_path=str(apart))) == []


def test_the_error_of_a_missing_teacher_names_its_stage() -> None:
    (problem,) = problems({"kind": "rl"}, {"kind": "distillation", "teacher": "/nowhere"})
    assert problem.startswith("stages[1].teacher: /nowhere does not exist")


def test_the_output_of_a_valid_run_lists_its_stages(capsys: pytest.CaptureFixture[str]) -> None:
    stages = [
        {"name": "start", "kind": "supervised", "steps": 7, "batch_size": 3},
        {"name": "reason", "kind": "rl", "set": {"learner.steps": 5}},
        {"name": "select", "kind": "rejection_sampling", "groups": 12, "rounds": 2},
        {"name": "label", "kind": "step_labels", "groups": 12},
    ]
    assert validate_command(parse_config({"model": TINY, "stages": stages}), "r.yaml") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[:5] == [
        "r.yaml is valid",
        "01_start supervised, 7 steps of 3 demonstrations",
        "02_reason rl, 5 steps of 64 groups × 8 completions",
        "03_select rejection_sampling, 2 rounds of 12 groups × 8 completions",
        "04_label step_labels, 12 groups × 8 completions, 8 completions behind each step",
    ]


def test_the_command_lists_every_problem_of_every_stage() -> None:
    config = parse_config(
        {
            "model": TINY,
            "stages": [
                {"name": "a", "kind": "rl", "set": {"rollout.max_new_tokens": 31}},
                {"name": "b", "kind": "distillation", "teacher": "/nowhere"},
            ],
        }
    )
    with pytest.raises(UsageError) as refused:
        validate_command(config, "r.yaml")
    assert "stages[0].rollout.max_new_tokens" in str(refused.value)
    assert "stages[1].teacher" in str(refused.value)
