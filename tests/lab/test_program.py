"""The command `slipstream lab` on a run with checkpoints: JSON, pictures, candidates and own objectives."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lab.stored_run import StoredRun
from slipstream.lab.compare import UnknownCandidate
from slipstream.lab.report import Options, compare
from slipstream.lab.words import about_weights

OWN = """
calls = 0

def halved(tokens):
    return -0.5 * tokens.log_ratio_T.exp() * tokens.advantages_T

def failing(tokens):
    global calls
    calls += 1
    if calls > 1:
        raise RuntimeError("out of losses")
    return halved(tokens)
"""


@pytest.fixture
def run_dir(stored_run: StoredRun, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stored_run.run_dir, tmp_path / "run"))


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "losses_of_the_lab.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "losses_of_the_lab"


def run_lab(cwd: Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "slipstream.cli", "lab", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(cwd), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environment)


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def test_json_is_strict_and_has_curves_matrices_steps_and_courses(run_dir: Path, own_module: str) -> None:
    done = run_lab(run_dir.parent, run_dir, "--step", 4, "--json", "--objective", f"{own_module}:halved")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout, parse_constant=refuse_constant)
    trials = report["trials"]
    names = [trial["name"] for trial in trials]
    count = len(names)
    for matrix in (report["slope_cosines"], report["weights"]["cosines"]):
        assert [len(row) for row in matrix] == [count] * count
        assert matrix[0][0] == pytest.approx(1.0)
    own, plain = names.index(f"{own_module}:halved"), names.index("is")
    assert trials[own]["norm"] == pytest.approx(0.5 * trials[plain]["norm"])
    assert report["slope_cosines"][own][plain] == pytest.approx(1.0)
    weights = report["weights"]
    assert weights["version"] == 3
    assert weights["distance"]["mean"] < 1e-5
    assert weights["exact_cosines"] is True
    assert weights["cosines"][own][plain] == pytest.approx(1.0, abs=1e-6)
    assert weights["effects"][own]["norm"] == pytest.approx(0.5 * weights["effects"][plain]["norm"], rel=1e-4)
    assert len(weights["effects"][0]["step"]["positive"]["quantiles"]) == len(report["quantiles"])
    assert weights["course_steps"] == [4, 5]
    assert weights["courses"][0]["step"] == [4, 5]
    assert weights["courses"][0]["stored"] == pytest.approx([0, 0], abs=1e-5)
    assert sum(course is not None for course in weights["courses"]) == 5
    gates = trials[0]["gates"]
    tokens = sum(sum(gates[sign]["tokens"]) for sign in ("positive", "negative"))
    assert 0 < tokens <= report["tokens"]
    assert len(gates["positive"]["ratios"]) == len(gates["positive"]["gates"])
    assert len(report["ratio_edges"]) == 41


def test_the_command_prints_tables_and_two_pictures(run_dir: Path) -> None:
    done = run_lab(run_dir.parent, run_dir, "--step", 4, "--candidates", "gspo", "icepop")
    assert done.returncode == 0, done.stderr
    assert "The checkpoint of version 3 is that of the step" in done.stdout
    assert "\nby the weights " in done.stdout
    assert "\nafter 1 update, step 5 " in done.stdout
    table = done.stdout.partition("after 1 update")[2]
    assert [name in table for name in ("this run", "gspo ", "icepop, anchor batch")] == [True] * 3
    assert "cispo" not in done.stdout
    for name in ("lab-4.png", "lab-4-weights.png"):
        assert (run_dir / "plots" / name).stat().st_size > 10_000


def test_without_weights_the_reason_is_in_the_report(run_dir: Path) -> None:
    off = compare(run_dir, Options(run_dir="", step=4, weights=False, candidates=["is"]))
    assert (off.study, off.without_weights) == (None, "--no-weights")
    early = compare(run_dir, Options(run_dir="", step=2, candidates=["is"]))
    assert early.study is None
    assert "no checkpoint from before step 2" in early.without_weights
    forced = compare(run_dir, Options(run_dir="", step=2, weights=True, candidates=["is"]))
    assert forced.study is not None
    assert forced.study.version == 0


def test_a_model_that_is_gone_is_an_error_only_if_the_weights_were_requested(run_dir: Path) -> None:
    config = run_dir / "config.yaml"
    config.write_text(config.read_text().replace("/tiny", "/gone"))
    automatic = compare(run_dir, Options(run_dir="", step=4, candidates=["is"]))
    assert automatic.study is None
    assert "gone" in automatic.without_weights
    with pytest.raises((OSError, ValueError), match="gone"):
        compare(run_dir, Options(run_dir="", step=4, candidates=["is"], weights=True))


def test_an_own_objective_that_fails_on_the_batch_is_listed_with_its_error(
    run_dir: Path, own_module: str
) -> None:
    name = f"{own_module}:failing"
    options = Options(run_dir="", step=4, weights=False, objectives=[name], candidates=[name])
    made = compare(run_dir, options)
    assert [(c.name, c.problem) for c in made.refused] == [(name, "out of losses")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objectives": ["losses_of_nobody:loss"]}, "No module named 'losses_of_nobody'"),
        ({"objectives": ["nonsense"]}, "needs the form package.module:function"),
        ({"candidates": ["gsp"]}, r"got 'gsp', needs some of .* \(did you mean 'gspo'\?\)"),
    ],
)
def test_unknown_names_are_errors(run_dir: Path, options: Any, message: str) -> None:
    with pytest.raises(UnknownCandidate, match=message):
        compare(run_dir, Options(run_dir="", step=4, weights=False, **options))


def test_the_words_name_the_distance_and_the_losses_that_differ(run_dir: Path) -> None:
    made = compare(run_dir, Options(run_dir="", step=5))
    assert made.study is not None
    words = " ".join(about_weights(made.batch, made.trials, made.study))
    assert "The checkpoint of version 3 was made 1 step before it: its logprobs are " in words
    assert "points farthest away from the loss of this run (cosine " in words
    assert "From the checkpoint, 1 update of the loss of this run" in words


def test_a_run_with_stages_is_compared_by_its_newest_stage(run_dir: Path, tmp_path: Path) -> None:
    stage = tmp_path / "staged" / "stages" / "01_rl"
    stage.parent.mkdir(parents=True)
    run_dir.rename(stage)
    done = run_lab(tmp_path, tmp_path / "staged", "--step", 4, "--json", "--no-weights", "--candidates", "is")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["step"] == 4
