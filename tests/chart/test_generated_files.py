"""The files that `make charts` generates are up to date, and the chart stores the run unchanged."""

from pathlib import Path

import pytest
import yaml
from chart.guard_cases import BASE
from clip_limits import with_clip_limits
from documentation import entries, tables
from generate import generate
from hypothesis import example, given, settings
from hypothesis import strategies as st
from render import CHART, ROOT, Release, examples, lint, read_release, render_objects
from slipstream.config import parse_config

ROOM = """\
# -- A room.
room:
  # -- How many,
  # at most.
  size: 3
  # -- Any | labels.
  labels: {a: b}
"""
NAMES = [file.stem for file in examples()]


def test_the_generated_files_are_up_to_date() -> None:
    assert [str(path.relative_to(ROOT)) for path in generate(write=False)] == [], "run `make charts`"


def test_a_limit_of_the_clip_fraction_is_that_of_the_objective_s_declaration() -> None:
    rules = (CHART / "files/rules/recording.yaml").read_text(encoding="utf-8")
    stale = rules.replace(
        '0.2 * slipstream_objective_info{objective="ppo_clip"}', "slipstream_objective_info"
    )
    assert stale != rules == with_clip_limits(stale)


def test_rules_without_the_limit_of_the_clip_fraction_are_an_error() -> None:
    with pytest.raises(ValueError, match="slipstream:clip_fraction_limit 0 times, needs 1"):
        with_clip_limits("groups: []\n")


def test_the_description_of_a_key_is_the_comment_above_it() -> None:
    assert [(entry.key, entry.text, entry.default) for entry in entries(ROOM)] == [
        ("room", "A room.", None),
        ("room.size", "How many, at most.", "3"),
        ("room.labels", "Any | labels.", '{"a": "b"}'),
    ]
    assert '| `room.labels` | `{"a": "b"}` | Any \\| labels. |' in tables(ROOM)


def test_a_key_without_a_description_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"room\.size needs a comment"):
        entries("room:\n  # -- Its name.\n  name: a\n  size: 3\n")


@pytest.mark.chart
@pytest.mark.parametrize("file", examples(), ids=NAMES)
def test_an_example_passes_a_strict_lint(file: Path) -> None:
    assert lint(read_release(file)) == []


@pytest.mark.parametrize("file", examples(), ids=NAMES)
def test_the_run_of_an_example_is_valid(file: Path) -> None:
    run = yaml.safe_load(read_release(file).values["run"]["config"])
    model = {"path": "/models", **run.get("model", {})}  # the chart sets a missing path
    assert parse_config({**run, "model": run["model"] if "tiny" in run["model"] else model})


LINES = st.lists(st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=12), max_size=6)


@pytest.mark.chart
@settings(max_examples=15, deadline=None)
@given(lines=LINES, newline=st.sampled_from(["\n", "\r\n"]), end=st.sampled_from(["", "\n", "\n\n\n"]))
@example(lines=["---", "", "{{ .Values.image }} %s \\n", "\ttab", " trailing  "], newline="\n", end="")
def test_the_run_is_stored_byte_for_byte(lines: list[str], newline: str, end: str) -> None:
    config = newline.join(["model: {tiny: {}}", *[f"# {line}" for line in lines]]) + end
    objects = render_objects(Release(values={**BASE, "run": {"config": config}}))
    (config_map,) = [element for element in objects if element["metadata"]["name"].endswith("-config")]
    assert config_map["data"]["run.yaml"] == config


def test_the_chart_is_named_and_versioned_as_the_package() -> None:
    from slipstream import __version__

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["name"], chart["appVersion"]) == ("slipstream", __version__)
