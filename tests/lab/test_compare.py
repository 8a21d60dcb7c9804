"""The loss lab: shares, slopes and refusals on a batch worked by hand, and the program on a stored run."""

import json
import math
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from docs.commands import Command, commands_of
from docs.shell_blocks import blocks
from samples.made_up import completion, group, values_of
from samples.test_writer import writing
from slipstream.algorithms import resolve_loss
from slipstream.algorithms.spec import (
    AGGREGATIONS,
    CORRECTIONS,
    OBJECTIVES,
    Aggregation,
    Cispo,
    Dppo,
    LossSpec,
    Tis,
)
from slipstream.cli.__main__ import main
from slipstream.lab.batch import Batch, NotStored, make_batch
from slipstream.lab.compare import candidates, cosine, tried
from slipstream.lab.curves import gate_curve
from slipstream.lab.plot import draw_cosines, load_pyplot
from slipstream.lab.words import paragraph
from slipstream.samples.reader import SampleReader
from slipstream.samples.table import make_table, trained_groups

ROOT = Path(__file__).parents[2]
STEP = 6
RUN: dict[str, Any] = {
    "algorithm": {"preset": "cispo"},
    "rewards": [{"name": "exact_match"}],
    "staleness": {"max_staleness": 1},
}


def batch_of(ratios: list[float], advantages: list[float], staleness: list[int]) -> Batch:
    """Return a batch of sequences of one token."""
    count = len(ratios)
    return Batch(
        step=STEP,
        logprobs_T=torch.tensor([math.log(ratio) - 1 for ratio in ratios], dtype=torch.float64),
        rollout_logprobs_T=torch.full((count,), -1.0, dtype=torch.float64),
        reference_logprobs_T=None,
        entropies_T=torch.ones(count, dtype=torch.float64),
        advantages_T=torch.tensor(advantages, dtype=torch.float64),
        staleness_T=torch.tensor(staleness),
        sequence_ids_T=torch.arange(count),
        group_ids_B=torch.zeros(count, dtype=torch.int64),
        completion_ids_B=torch.arange(count),
    )


BATCH = batch_of([0.5, 1.0, 1.5, 1.0], [-1.0, 1.0, 1.0, 1.0], [0, 0, 1, 5])


def test_shares_are_those_of_the_tokens() -> None:
    own = resolve_loss({"objective": {"kind": "ppo_clip"}, "aggregation": "token_mean", "max_staleness": 1})
    (trial,), _ = tried(BATCH, own, [])
    assert (trial.excluded, trial.over_age) == (0.75, 0.25)
    assert (trial.clipped_low, trial.clipped_high) == (0.25, 0.25)
    assert trial.effective == pytest.approx(1 / 3)
    assert (trial.norm, trial.cosine) == (1.0, pytest.approx(1.0))
    assert trial.slope_T.tolist() == pytest.approx([0, -0.25, 0, 0])


def test_every_kind_of_the_catalogue_is_tried_or_refused_with_a_reason() -> None:
    own = resolve_loss({"objective": {"kind": "cispo"}, "aggregation": "token_mean", "max_staleness": 1})
    trials, refused = tried(BATCH, own, list(candidates(own, longest=8)))
    named = {(t.candidate.axis, t.candidate.name.partition(",")[0]) for t in trials[1:]}
    named |= {(c.axis, c.name.partition(",")[0]) for c in refused}
    assert named == {
        *(("objective", kind) for kind in OBJECTIVES if kind != "custom"),
        *(("correction", kind) for kind in CORRECTIONS),
        *(("aggregation", name) for name in AGGREGATIONS),
    }
    assert all(candidate.problem for candidate in refused)
    assert {c.name for c in refused} <= {"pg", "rspo", "seq_len_weighted", "m2po, anchor batch"}


def test_the_runs_own_objective_is_among_the_others_with_the_same_slope() -> None:
    own = resolve_loss({"objective": {"kind": "cispo"}, "aggregation": "token_mean", "max_staleness": 1})
    trials, _ = tried(BATCH, own, list(candidates(own, longest=8)))
    same = next(t for t in trials if t.candidate.name == "cispo")
    assert torch.equal(same.slope_T, trials[0].slope_T)
    assert cosine(same.slope_T, torch.zeros_like(same.slope_T)) != cosine(same.slope_T, same.slope_T)


@pytest.mark.parametrize(
    "preset", ["icepop", "decoupled_gspo", "m2po", "dapo", "dr_grpo", "luspo", "dppo_tv", "kimi_k1_5"]
)
def test_the_row_of_each_part_of_the_run_is_the_loss_of_the_run(preset: str) -> None:
    aggregation = {"aggregation": {"kind": "token_sum_norm", "max_tokens": 4}} if preset == "dr_grpo" else {}
    own = resolve_loss({"preset": preset, "max_staleness": 1, **aggregation})
    trials, _ = tried(BATCH, own, list(candidates(own, longest=8)))
    parts = {own.objective.kind, own.aggregation.kind, *(part.kind for part in own.corrections)}
    rows = {trial.candidate.name: trial for trial in trials if trial.candidate.name in parts}
    assert rows.keys() == parts
    for trial in rows.values():
        assert trial.candidate.loss == own
        assert (trial.norm, trial.cosine) == (1.0, pytest.approx(1.0))


def loss_of(own: LossSpec, axis: str, kind: str) -> tuple[str, LossSpec]:
    """Return the name and the loss of one candidate."""
    (candidate,) = [c for c in candidates(own, longest=8) if (c.axis, c.kind) == (axis, kind)]
    assert candidate.loss is not None, candidate.problem
    return candidate.name, candidate.loss


def test_candidates_have_the_other_parts_of_the_run() -> None:
    parts = {"entropy": {"coefficient": 0.01}, "drift_penalty": {"coefficient": 0.1}, "top_entropy": {}}
    own = resolve_loss({"preset": "icepop", "max_staleness": 1, **parts})
    name, other = loss_of(own, "objective", "cispo")
    assert name == "cispo, anchor batch"
    assert other == replace(own, objective=Cispo(anchor="batch"))
    assert loss_of(own, "correction", "tis") == ("tis", replace(own, corrections=(Tis(),)))
    aggregated = replace(own, aggregation=Aggregation(kind="prompt_mean"))
    assert loss_of(own, "aggregation", "prompt_mean") == ("prompt_mean", aggregated)


def test_the_name_says_what_of_the_run_an_objective_cannot_have() -> None:
    own = resolve_loss({"preset": "icepop", "max_staleness": 1})
    name, other = loss_of(own, "objective", "dppo")
    assert (name, other) == ("dppo, without icepop", replace(own, objective=Dppo(), corrections=()))
    name, other = loss_of(resolve_loss({"preset": "luspo", "max_staleness": 1}), "objective", "is")
    assert (name, other.aggregation.kind) == ("is, seq_mean_token_sum", "seq_mean_token_sum")


def test_the_curves_are_the_mean_gates_of_the_tokens_that_are_not_over_age() -> None:
    own = resolve_loss({"objective": {"kind": "is"}, "aggregation": "token_mean", "max_staleness": 1})
    (trial,), _ = tried(BATCH, own, [])
    curve = gate_curve(BATCH, trial, 1)
    assert curve.ratios.tolist() == pytest.approx([1.0, 1.5])
    assert curve.gates.tolist() == pytest.approx([1.0, 1.5])
    assert curve.tokens.tolist() == [1, 1]
    assert gate_curve(BATCH, trial, -1).gates.tolist() == pytest.approx([0.5])


def test_the_words_name_what_the_strictest_objective_excludes() -> None:
    own = resolve_loss({"objective": {"kind": "is"}, "aggregation": "token_mean", "max_staleness": 9})
    trials, _ = tried(BATCH, own, list(candidates(own, longest=8)))
    words = paragraph(BATCH, trials)
    assert "Step 6 trained on 4 tokens of 4 completions, 1.5 versions old on average and 5 at most" in words
    assert "50 % of their ratios are outside of 0.8 to 1.2" in words
    assert "The loss of this run excludes 0 % of these tokens." in words
    assert (
        "excludes most with its defaults: 50 % of the tokens (25 % below its band, 25 % above its band)"
        in words
    )


def test_segments_are_sequences_and_tokens_of_an_environment_are_left_out() -> None:
    random = Random(2)
    groups = [group(f"g{n}", [completion(random, segments=2), completion(random)]) for n in range(3)]
    values = values_of(random, [c.sampled for g in groups for c in g.completions])
    rows = make_table(STEP, trained_groups(groups), values, weights={}, time=0.0).to_pylist()
    batch = make_batch(STEP, rows)
    segments = [(g, s) for g in groups for c in g.completions for s in c.segments if any(s.mask)]
    lengths = [sum(segment.mask) for _, segment in segments]
    assert torch.bincount(batch.sequence_ids_T).tolist() == lengths
    assert batch.group_ids_B.tolist() == [int(g.group_id[1:]) for g, _ in segments]
    expected = [x for _, s in segments for x, one in zip(s.logprobs, s.mask, strict=True) if one]
    assert batch.rollout_logprobs_T.tolist() == pytest.approx(expected)


def test_a_step_without_values_is_refused() -> None:
    rows = make_table(STEP, trained_groups([group("g", [completion(Random(1))])]), None, weights={}, time=0.0)
    with pytest.raises(NotStored, match="no completion that step 6 trained on is stored"):
        make_batch(STEP, rows.to_pylist())


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    store_run(tmp_path, steps=(5, STEP))
    return tmp_path


def store_run(folder: Path, *, steps: Sequence[int]) -> None:
    random = Random(3)
    (folder / "config.yaml").write_text(yaml.safe_dump(RUN))
    groups = [group(f"g{n}", [completion(random) for _ in range(4)]) for n in range(4)]
    with writing(folder) as writer:
        for step in steps:
            sizes = [c.sampled for g in groups for c in g.completions]
            values = values_of(random, sizes)
            values.advantages_N[:] = np.where(values.completion_N % 2, 1.0, -1.0)
            writer.put(step, groups, values)


def run_lab(*arguments: object, folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "slipstream.cli", "lab", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


COMMANDS = [
    command
    for page in ("docs/samples.md", "docs/objectives.md")
    for command in commands_of(ROOT / page)
    if command.words[:2] == ["slipstream", "lab"]
]


@pytest.fixture(scope="module")
def reader_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the run and the module that the pages name."""
    folder = tmp_path_factory.mktemp("reader")
    run = folder / "runs" / "20261126-1010"
    run.mkdir(parents=True)
    store_run(run, steps=(4, 40))
    (folder / "runs" / "latest").symlink_to(run)
    page = (ROOT / "docs/algorithms.md").read_text(encoding="utf-8")
    (module,) = [block for block in blocks(page, "python") if "def soft_clip" in block]
    (folder / "my_losses.py").write_text(module, encoding="utf-8")
    return folder


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.text)
def test_a_command_of_a_page_runs(command: Command, reader_folder: Path) -> None:
    done = run_lab(*command.words[2:], folder=reader_folder)
    assert done.returncode == 0, done.stderr
    assert "The loss of this run excludes" in done.stdout


def test_the_command_prints_tables_and_draws_a_picture(run_dir: Path) -> None:
    done = run_lab(run_dir)
    assert done.returncode == 0, done.stderr
    assert "The loss of this run excludes" in done.stdout
    for name in ("gspo", "sapo", "icepop, anchor batch", "prompt_mean"):
        assert f"\n{name} " in done.stdout
    assert (run_dir / "plots" / f"lab-{STEP}.png").stat().st_size > 10_000


def test_cosines_have_the_colours_of_the_console() -> None:
    script = (ROOT / "services/slipstream/console/static/colours.js").read_text(encoding="utf-8")
    hues = {name: [*map(int, rgb.split(","))] for name, rgb in re.findall(r"(\w+): \[([\d, ]+)\]", script)}
    figure = load_pyplot().figure()
    axis = figure.add_subplot()
    draw_cosines(figure, axis, ["one", "other"], [[1, 0], [0, -1]], "")
    (image,) = axis.images
    colours = image.to_rgba(image.get_array(), bytes=True)[..., :3].tolist()
    assert [colours[0][0], colours[1][1]] == [hues["orange"], hues["blue"]]
    assert min(colours[0][1]) > 250


def test_json_has_the_trials_of_the_chosen_step(run_dir: Path) -> None:
    done = run_lab(run_dir, "--step", 5, "--json")
    report = json.loads(done.stdout)
    assert report["step"] == 5
    assert report["tokens"] == sum(
        len(r["token_ids"]) and sum(r["mask"]) for r in SampleReader(run_dir).tokens_of_step(5)
    )
    assert report["trials"][0]["name"] == "this run"
    assert {trial["axis"] for trial in report["trials"]} == {"objective", "correction", "aggregation"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--step", 9], "step 9 is not stored; steps 5 to 6 are"), (["gone"], "there is no such directory")],
)
def test_errors_are_one_line(run_dir: Path, arguments: list[object], message: str) -> None:
    done = run_lab(*([run_dir, *arguments] if arguments[0] == "--step" else arguments))
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_help_names_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["lab", "--help"])
    assert "--step" in capsys.readouterr().out
