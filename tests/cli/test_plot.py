"""`slipstream plot`: the usual plots, any key, and several runs in the same axes."""

from pathlib import Path
from typing import Any

import pytest
from cli.runs import make_run, some_rows
from matplotlib import image
from matplotlib.figure import Figure
from slipstream.cli.__main__ import main
from slipstream.cli.launch.comparison import STANDARD, figure_of, keys_of, points_of, standard_figures
from slipstream.cli.launch.history import History
from slipstream.cli.plot import divide, legend

Output = pytest.CaptureFixture[str]


def a_history(steps: int) -> History:
    history = History()
    for row in some_rows(steps):
        history.add(row)
    return history


def axes_of(draw: Any) -> Any:
    """Draw into new axes."""
    axes = Figure().subplots()
    draw(axes)
    return axes


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    first, second = tmp_path / "runs/first", tmp_path / "runs/second"
    make_run(first, some_rows(30))
    make_run(second, some_rows(20))
    return first, second


def test_one_run_has_its_usual_plots_again(runs: tuple[Path, Path], capsys: Output) -> None:
    assert main(["plot", str(runs[0])]) == 0
    files = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert files == [
        runs[0] / "plots" / f"{name}.png" for name in ("reward", "staleness", "clip_fractions", "throughput")
    ]
    assert all(image.imread(file).shape[0] >= 400 for file in files)


def test_several_runs_go_into_plots_of_this_folder(
    runs: tuple[Path, Path], capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plot", "runs/first", "runs/second"]) == 0
    files = capsys.readouterr().out.splitlines()
    assert files == [f"plots/{name}.png" for name in (*STANDARD, "staleness")]
    assert all(Path(file).stat().st_size > 5000 for file in files)


def test_keys_are_files_of_their_names_in_the_format(
    runs: tuple[Path, Path], capsys: Output, tmp_path: Path
) -> None:
    options = ["rewards.exact_match", "accuracy", "--output", str(tmp_path / "out"), "--format", "svg"]
    assert main(["plot", *map(str, runs), *options]) == 0
    files = sorted((tmp_path / "out").iterdir())
    assert [file.name for file in files] == ["accuracy.svg", "rewards.exact_match.svg"]
    assert capsys.readouterr().out.split() == [str(files[1]), str(files[0])]
    assert all(file.read_text().startswith("<?xml") for file in files)


def test_each_run_has_a_line_and_a_name() -> None:
    axes = axes_of(figure_of({"a": a_history(30), "$b$_2": a_history(20)}, "reward_mean"))
    lines = [line for line in axes.lines if not line.get_label().startswith("_")]
    assert [(line.get_label(), len(line.get_xdata())) for line in lines] == [("a", 30), (r"\$b\$_2", 20)]
    assert len({line.get_color() for line in lines}) == 2
    assert [text.get_text() for text in axes.figure.legends[0].texts] == ["a", r"\$b\$_2"]


def test_the_clip_fractions_of_a_run_have_one_color_and_two_styles() -> None:
    axes = axes_of(standard_figures({"a": a_history(9), "b": a_history(9)})["clip_fractions"])
    assert [line.get_label() for line in axes.lines] == ["a, low", "a, high", "b, low", "b, high"]
    assert [line.get_linestyle() for line in axes.lines] == ["-", "--", "-", "--"]
    colors = [line.get_color() for line in axes.lines]
    assert colors[0] == colors[1] != colors[2] == colors[3]


def test_the_ages_of_each_run_sum_to_a_hundred_percent() -> None:
    axes = axes_of(standard_figures({"a": a_history(9), "b": a_history(5)})["staleness"])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1", "2", "3-4"]
    for bars in axes.containers:
        assert sum(bar.get_height() for bar in bars) == pytest.approx(100)


def test_a_dot_leads_into_a_nested_value() -> None:
    history = a_history(2)
    assert points_of(history, "rewards.exact_match") == [(1, pytest.approx(0.21)), (2, pytest.approx(0.22))]
    assert points_of(history, "accuracy") == [(0, 0.25), (2, 0.75)]
    assert points_of(history, "rewards") == []
    assert points_of(history, "event") == []
    assert {"reward_mean", "accuracy", "rewards.exact_match", "staleness_histogram.>8"} <= {*keys_of(history)}


def test_an_unknown_key_suggests_the_nearest(runs: tuple[Path, Path], capsys: Output) -> None:
    assert main(["plot", str(runs[0]), "reward_maen"]) == 2
    error = capsys.readouterr().err
    assert "reward_maen is no directory, and no number of metrics.jsonl; did you mean reward_mean" in error


def test_a_run_without_a_step_and_one_that_is_no_run_are_wrong_usage(tmp_path: Path, capsys: Output) -> None:
    make_run(tmp_path / "new", [])
    assert main(["plot", str(tmp_path / "new")]) == 2
    assert "the run has no step yet" in capsys.readouterr().err
    make_run(tmp_path / "old", []).metrics.write_bytes(b"\x00\xff\n")
    assert main(["plot", str(tmp_path / "old")]) == 2
    assert "its metrics.jsonl has no row of a learner" in capsys.readouterr().err


def test_a_name_is_a_directory_or_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loss").mkdir()
    assert divide(["loss", "runs/gone", "reward_mean", "loss"]) == (
        [Path("loss"), Path("runs/gone")],
        ["reward_mean"],
    )
    assert divide(["reward_mean"]) == ([Path("runs/latest")], ["reward_mean"])


def test_runs_of_the_same_name_are_listed_by_their_paths(tmp_path: Path) -> None:
    paths = [tmp_path / "a/run", tmp_path / "b/run", tmp_path / "other"]
    assert list(legend(paths)) == [str(paths[0]), str(paths[1]), "other"]
