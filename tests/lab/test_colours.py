"""The pictures and the page have the same colours, also for the same signs."""

import re
from importlib.resources import files
from pathlib import Path

import pytest
from lab.stored_run import StoredRun
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from slipstream.cli.launch import plots
from slipstream.lab.plot import draw_study
from slipstream.lab.report import Options, compare

COLOURS = files("slipstream.console").joinpath("static/colours.js").read_text(encoding="utf-8")


def colour_of(name: str) -> str:
    """Return a colour of the page."""
    (numbers,) = re.findall(rf"\b{name}: \[(\d+), (\d+), (\d+)\]", COLOURS)
    return "#" + "".join(f"{int(number):02x}" for number in numbers)


@pytest.mark.parametrize("name", ["blue", "orange", "green"])
def test_the_page_has_the_colours_of_the_pictures(name: str) -> None:
    assert colour_of(name) == getattr(plots, name.upper())


def test_tokens_with_an_advantage_above_0_have_the_colour_of_the_page(
    stored_run: StoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (low, high) = re.findall(r'advantage: .*bySign\(value, 2, "(\w+)", "(\w+)"\)', COLOURS)[0]
    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k)))
    made = compare(stored_run.run_dir, Options(run_dir="", step=4, candidates=["sapo"]))
    assert made.study is not None
    draw_study(made.batch, made.trials, made.study, tmp_path / "weights.png")
    (axes,) = [axes for axes in figures[0].axes if "advantage > 0" in axes.get_title().partition(":")[2]]
    heights = [(to_hex(line.get_color()), line.get_ydata()[0] % 1) for line in axes.lines]
    bars = [(colour, height) for colour, height in heights if height and colour != "#000000"]
    assert {colour for colour, height in bars if height > 0.5} == {colour_of(high)}, "above its loss"
    assert {colour for colour, height in bars if height < 0.5} == {colour_of(low)}, "below its loss"
    assert axes.get_title().endswith(f"advantage > 0 {high}, < 0 {low}")
