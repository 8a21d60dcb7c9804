"""Curves, bars and histograms of Unicode blocks."""

from slipstream.cli.launch.curves import curve, histogram, stacked_bar


def test_a_curve_goes_from_the_lowest_to_the_highest_block() -> None:
    points = [(step, float(step)) for step in range(1, 9)]
    assert curve(points, width=8, span=(1, 8)) == ["▁▂▃▄▅▆▇█"]


def test_more_steps_than_characters_are_averaged() -> None:
    points = [(1, 0.0), (2, 2.0), (3, 0.0), (4, 0.0), (5, 10.0), (6, 10.0)]
    assert curve(points, width=3, span=(1, 6)) == ["▂▁█"]


def test_a_character_without_a_step_repeats_the_value_before_it() -> None:
    assert curve([(0, 0.0), (4, 1.0)], width=8, span=(0, 7)) == ["▁▁▁▁████"]


def test_before_the_first_value_there_is_nothing() -> None:
    assert curve([(4, 0.0), (5, 1.0)], width=6, span=(0, 5)) == ["    ▁█"]


def test_a_point_outside_of_the_axis_is_at_its_end() -> None:
    assert curve([(0, 0.0), (9, 1.0)], width=4, span=(1, 4)) == ["▁▁▁█"]


def test_a_floor_is_the_lower_end_of_the_scale() -> None:
    points = [(1, 7.0), (2, 14.0)]
    assert curve(points, width=2, span=(1, 2)) == ["▁█"]
    assert curve(points, width=2, span=(1, 2), floor=0.0) == ["▅█"]


def test_a_constant_is_a_line_in_the_middle_and_zero_one_at_the_bottom() -> None:
    assert curve([(1, 3.0), (2, 3.0)], width=4, span=(1, 2)) == ["▄▄▄▄"]
    assert curve([(1, 0.0), (2, 0.0)], width=4, span=(1, 2), floor=0.0) == ["▁▁▁▁"]


def test_a_high_curve_fills_the_lines_below() -> None:
    points = [(1, 0.0), (2, 0.5), (3, 1.0)]
    assert curve(points, width=3, span=(1, 3), rows=2) == [" ▁█", "▁██"]


def test_no_points_are_an_empty_line() -> None:
    assert curve([], width=3, span=(0, 5), rows=2) == ["   ", "   "]


def test_a_histogram_ends_with_its_last_bucket_that_is_not_empty() -> None:
    assert histogram({"0": 0, "1": 80, "2": 40, "3-4": 1, "5-8": 0, ">8": 0}) == "0 ·  1 █  2 ▄  3-4 ▁"
    assert histogram({"0": 0}) == ""
    assert histogram({}) == ""


def test_the_parts_of_a_bar_have_its_width_together() -> None:
    assert stacked_bar([0.25, 0.5, 0.25], "abc", width=8) == ["aa", "bbbb", "cc"]
    thirds = stacked_bar([1 / 3, 1 / 3, 1 / 3], "abc", width=10)
    assert [len(part) for part in thirds] == [3, 4, 3]
