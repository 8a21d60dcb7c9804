"""The checks of a teacher by `validate`, and the processes of a run with a teacher."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from slipstream.cli.__main__ import main
from slipstream.cli.axes import axis_rows
from slipstream.cli.checks.model import read_model
from slipstream.cli.checks.teacher import check_teacher
from slipstream.cli.launch.history import History
from slipstream.cli.launch.pods import LEARNER, TEACHER, address_environment, local_pods
from slipstream.cli.launch.run_directory import RunDirectory
from slipstream.cli.launch.run_warnings import RunWarnings
from slipstream.cli.validate import find_problems
from slipstream.config import RunConfig, parse_config
from slipstream.config.load import given_tree
from teacher.serving import tiny_teacher


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_teacher(tmp_path_factory.mktemp("models") / "policy", seed=1)


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    return tiny_teacher(tmp_path / "teacher")


def distilled(model: Path | None, teacher: Path, *overrides: str) -> RunConfig:
    tree = {
        "model": {"tiny": {}} if model is None else {"path": str(model)},
        "teacher": {"path": str(teacher)},
        "algorithm": {"distillation": {}, "shaping": None},
        "rollout": {"max_new_tokens": 8},
    }
    return parse_config(tree, overrides)


def reasons(config: RunConfig) -> list[str]:
    problems_found = list(check_teacher(config, read_model(config)))
    assert all(problem.key == "teacher.path" for problem in problems_found)
    return [f"{problem.reason}; {problem.remedy}" for problem in problems_found]


def test_a_teacher_with_the_policys_vocabulary_is_valid(model: Path, teacher: Path) -> None:
    assert reasons(distilled(model, teacher)) == []
    assert reasons(distilled(None, teacher)) == []


@pytest.mark.parametrize("tiny", [False, True], ids=["directory", "tiny"])
def test_a_teacher_with_another_vocabulary_is_refused(model: Path, teacher: Path, tiny: bool) -> None:
    tree = json.loads((teacher / "tokenizer.json").read_text(encoding="utf-8"))
    tree["model"]["vocab"] |= {"0": tree["model"]["vocab"]["1"], "1": tree["model"]["vocab"]["0"]}
    (teacher / "tokenizer.json").write_text(json.dumps(tree), encoding="utf-8")
    (reason,) = reasons(distilled(None if tiny else model, teacher))
    assert f"has another vocabulary than {'model.tiny' if tiny else model}" in reason
    assert "the policy's tokenizer" in reason


def test_a_teacher_without_its_weights_is_refused(model: Path, teacher: Path) -> None:
    weights = teacher / "model.safetensors"
    weights.write_bytes(b"")
    (reason,) = reasons(distilled(model, teacher))
    assert "model.safetensors is empty or cut off" in reason
    weights.unlink()
    (reason,) = reasons(distilled(model, teacher))
    assert f"{teacher} has no .safetensors file; save the weights" in reason
    parts = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (teacher / "model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))
    shutil.copy(model / "model.safetensors", teacher / "model-1.safetensors")
    (reason,) = reasons(distilled(model, teacher))
    assert "lacks model-2.safetensors, which model.safetensors.index.json names" in reason
    shutil.copy(model / "model.safetensors", teacher / "model-2.safetensors")
    assert reasons(distilled(model, teacher)) == []


@pytest.mark.parametrize("policy", ["tiny", "directory"])
def test_a_top_k_beyond_the_vocabulary_of_policy_or_teacher_is_refused(
    model: Path, teacher: Path, policy: str
) -> None:
    run = distilled(None if policy == "tiny" else model, teacher, "algorithm.distillation.kind=reverse")

    def problems_found(top_k: int) -> list[str]:
        config = parse_config(given_tree(run), [f"algorithm.distillation.top_k={top_k}"])
        problems = find_problems(config, gpus="note")
        return [p.reason for p in problems if p.key == "algorithm.distillation.top_k"]

    assert problems_found(99) == []
    assert problems_found(100) == ["is 100, and the model has 99 tokens"]
    config = json.loads((teacher / "config.json").read_text())
    (teacher / "config.json").write_text(json.dumps(config | {"vocab_size": 90}))
    assert problems_found(95) == ["is 95, and the teacher has 90 tokens"]


def test_the_error_names_a_directory_without_a_model(model: Path, teacher: Path, tmp_path: Path) -> None:
    (reason,) = reasons(distilled(model, tmp_path / "nowhere"))
    assert "nowhere has no config.json" in reason
    (teacher / "tokenizer.json").unlink()
    (reason,) = reasons(distilled(model, teacher))
    assert "its vocabulary cannot be read" in reason


def test_a_context_that_completions_fill_is_refused(model: Path, teacher: Path) -> None:
    (reason,) = reasons(distilled(model, teacher, "rollout.max_new_tokens=64"))
    assert "reads 64 tokens, and rollout.max_new_tokens is 64" in reason


@pytest.mark.parametrize("tiny", [False, True], ids=["directory", "tiny"])
def test_the_longest_prompt_with_its_completion_has_to_fit_the_teachers_context(
    model: Path, teacher: Path, tmp_path: Path, tiny: bool
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"prompt": "{"1" * n}", "answer": "2"}}\n' for n in (4, 10)))
    data = f"data={{kind: file, path: {rows}, held_out_path: {tmp_path / 'held.jsonl'}}}"
    (tmp_path / "held.jsonl").write_text(f'{{"prompt": "{"1" * 50}", "answer": "2"}}\n')

    def problems_found(*overrides: str) -> list[str]:
        return reasons(distilled(None if tiny else model, teacher, data, *overrides))

    assert problems_found("rollout.max_new_tokens=54") == []
    (reason,) = problems_found("rollout.max_new_tokens=55")
    assert "reads 64 tokens, and the longest prompt (10) with a completion of 55 has 65" in reason
    assert "lower rollout.max_new_tokens to 54, or name a teacher" in reason
    # the learner does not ask the teacher about sequences that are longer than a training row
    assert problems_found("rollout.max_new_tokens=55", "learner.max_tokens_per_row=64") == []
    (problem,) = problems_found("rollout.max_new_tokens=20", "rollout.sampling=verbalized")
    assert "the longest prompt (" in problem


def test_an_unused_teacher_is_not_checked(model: Path, tmp_path: Path) -> None:
    config = distilled(model, tmp_path / "nowhere", "algorithm.distillation=null")
    assert reasons(config) == []


def test_a_run_that_distills_starts_a_teacher_and_gives_the_learner_its_address(
    model: Path, teacher: Path
) -> None:
    specs = {spec.name: spec for spec in local_pods(distilled(model, teacher))}
    assert specs[TEACHER].command == (sys.executable, "-m", "slipstream.teacher")
    assert specs[TEACHER].start_seconds == 900
    assert not specs[TEACHER].works
    assert TEACHER in specs[LEARNER].needs
    assert address_environment({TEACHER: "127.0.0.1:5"}) == {"SLIPSTREAM_TEACHER_ADDRESS": "127.0.0.1:5"}
    plain = distilled(model, teacher, "algorithm.distillation=null")
    without = {spec.name: spec for spec in local_pods(plain)}
    assert TEACHER not in without
    assert without[LEARNER].needs == ("replay",)


def test_validate_prints_the_kind_of_distillation_and_its_teacher(
    model: Path, teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = dict(axis_rows(distilled(model, teacher, "algorithm.distillation={kind: mixed}")))
    assert rows["distillation"] == (
        f"mixed (coefficient 1, reward_weight 0, top_k 16, forward_share 0.5), from {teacher}"
    )
    for kind, text in (
        ("reverse", "reverse (coefficient 1, reward_weight 0, top_k 16)"),
        ("advantage", "advantage (coefficient 1, reward_weight 0)"),
    ):
        rows = dict(axis_rows(distilled(model, teacher, f"algorithm.distillation={{kind: {kind}}}")))
        assert rows["distillation"] == f"{text}, from {teacher}"
    file = tmp_path / "run.yaml"
    file.write_text(f"{{model: {{path: {model}}}, algorithm: {{distillation: {{}}}}}}")
    assert main(["validate", str(file)]) == 2
    assert "teacher.path: is not set" in capsys.readouterr().err


@pytest.mark.parametrize(("weight", "warned"), [(0.0, False), (1.0, True)])
def test_equal_rewards_are_a_warning_only_if_rewards_train(
    model: Path, teacher: Path, tmp_path: Path, weight: float, warned: bool
) -> None:
    lines: list[str] = []
    config = distilled(model, teacher, f"algorithm.distillation={{reward_weight: {weight}}}")
    attention = RunWarnings(config, RunDirectory(tmp_path), [], say=lines.append, history=History())
    rows = [{"event": "step", "step": step, "unvaried_share": 1.0} for step in range(1, 60)]
    attention.look(rows, replay=None)
    assert any("nothing is learned from those" in line for line in lines) == warned
