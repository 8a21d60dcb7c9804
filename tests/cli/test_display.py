"""The display of a run: plain lines, and the plots."""

import io
import json
from pathlib import Path

import pytest
from matplotlib import image
from slipstream.cli.launch.columns import duration, evaluation_line, step_line
from slipstream.cli.launch.display import PlainDisplay
from slipstream.cli.launch.history import History
from slipstream.cli.launch.plots import draw_all, smooth


def a_history(steps: int) -> History:
    history = History()
    history.add({"event": "evaluation", "step": 0, "accuracy": 0.3})
    for step in range(1, steps + 1):
        values = {"reward_mean": step / steps, "tokens_per_second": 5000 + step, "idle_fraction": 0.1}
        clips = {"clip_fraction_low": 0.001, "clip_fraction_high": 0.01 * (step % 3)}
        ages = {"staleness_histogram": {"0": 5, "1": 9, "2": step}}
        history.add({"event": "step", "step": step, **values, **clips, **ages})
    history.add({"event": "evaluation", "step": steps, "accuracy": 0.7})
    return history


def test_a_missing_value_is_a_dash() -> None:
    line = step_line({"step": 1}, History(), steps=9)

    assert line.startswith(
        "step 1/9  reward –  held-out –  filtered –  truncated –  staleness – max –  clip low/high –/–"
    )
    assert line.endswith("time left –")


def test_the_time_left_follows_from_the_newest_steps_of_this_session() -> None:
    history = History()
    for step, elapsed in ((1, 500.0), (2, 1000.0), (3, 2.0), (4, 4.0), (5, 6.0)):
        history.add({"event": "step", "step": step, "elapsed_seconds": elapsed})
    assert history.seconds_left(100) == 2.0 * 95
    assert step_line({"step": 5}, history, steps=100).endswith("time left 3m 10s")


def test_one_step_gives_no_estimate_of_the_time_left() -> None:
    history = History()
    history.add({"event": "step", "step": 1, "elapsed_seconds": 3.0})
    assert history.seconds_left(100) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0s"), (59.6, "1m 00s"), (3599, "59m 59s"), (7325, "2h 02m"), (187_200, "2d 04h")],
)
def test_a_duration_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_an_evaluation_names_its_unscored_completions() -> None:
    row = {"step": 50, "accuracy": 0.5, "completions": 1024, "mean_version": 51.24, "errors": 3}

    assert (
        evaluation_line(row)
        == "held-out accuracy 0.500 at step 50 (1,024 completions, mean version 51.2), 3 could not be scored"
    )


def test_a_long_wait_is_named_every_ten_seconds() -> None:
    stream = io.StringIO()
    display = PlainDisplay(5, stream)
    for seconds in range(0, 25):
        display.waiting("rollout-0", seconds)

    assert stream.getvalue().splitlines() == [f"waiting for rollout-0 ({s} s)" for s in (0, 10, 20)]


def test_the_plots_are_not_empty(tmp_path: Path) -> None:
    paths = draw_all(a_history(60), tmp_path)

    assert [path.stem for path in paths] == ["reward", "staleness", "clip_fractions", "throughput"]
    for path in paths:
        pixels = image.imread(path)
        assert pixels.shape[0] >= 400
        assert len({tuple(pixel) for pixel in pixels.reshape(-1, pixels.shape[-1])[::97]}) > 5


def test_plots_of_rows_without_values_do_not_fail(tmp_path: Path) -> None:
    history = History()
    history.add(json.loads('{"event": "step", "step": 1}'))

    assert len(draw_all(history, tmp_path)) == 4


def test_smoothing_keeps_the_length_and_the_mean_of_a_line() -> None:
    assert smooth([1, 2, 3, 4, 5], 3) == [1.5, 2, 3, 4, 4.5]
