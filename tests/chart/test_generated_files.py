"""What `make charts` writes: documentation from values.yaml, copies, rendered examples; and the run, byte for byte."""

import pytest
import yaml
from chart.guard_cases import BASE
from documentation import entries, tables
from generate import generate
from hypothesis import example, given, settings
from hypothesis import strategies as st
from render import CHART, ROOT, Release, examples, lint, read_release, render_objects
from slipstream.config import parse_config


def test_what_the_chart_carries_is_up_to_date() -> None:
    assert [str(path.relative_to(ROOT)) for path in generate(write=False)] == [], "run `make charts`"


def test_a_key_is_described_by_the_comment_above_it() -> None:
    text = "# -- A room.\nroom:\n  # -- How many,\n  # at most.\n  size: 3\n  # -- Any | labels.\n  labels: {a: b}\n"
    assert [(entry.key, entry.text, entry.default) for entry in entries(text)] == [
        ("room", "A room.", None),
        ("room.size", "How many, at most.", "3"),
        ("room.labels", "Any | labels.", '{"a": "b"}'),
    ]
    assert '| `room.labels` | `{"a": "b"}` | Any \\| labels. |' in tables(text)


def test_a_key_without_a_description_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"room\.size needs a comment"):
        entries("room:\n  # -- Its name.\n  name: a\n  size: 3\n")


@pytest.mark.parametrize("file", examples(), ids=[file.stem for file in examples()])
def test_an_example_passes_a_strict_lint(file) -> None:
    assert lint(read_release(file)) == []


@pytest.mark.parametrize("file", examples(), ids=[file.stem for file in examples()])
def test_the_run_of_an_example_names_no_model_that_the_chart_would_replace(file) -> None:
    release = read_release(file)
    run = yaml.safe_load(release.values["run"]["config"])
    assert parse_config({**run, "model": {"tiny": {}}} if "tiny" not in run.get("model", {}) else run)


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)


@settings(max_examples=60, deadline=None)
@given(before=TEXT, after=TEXT)
@example(before="", after="")
@example(before="", after="\n\n\n")
@example(before="---\n# a\r\n", after="\n---\n\t")
@example(before="# {{ .Values.image }}\n", after="  \n # b: |\n   c  ")
def test_the_run_goes_in_byte_for_byte(before: str, after: str) -> None:
    lines = [f"# {line}" for line in before.split("\n")]
    config = "\n".join(lines) + "\nmodel: {tiny: {}}\n" + after.replace("\n", "\n#") if after else before
    values = {**BASE, "run": {"config": config}}
    try:
        objects = render_objects(Release(values=values))
    except ValueError:
        return  # not a run: refused
    (found,) = [each for each in objects if each["metadata"]["name"].endswith("-config")]
    assert found["data"]["run.yaml"] == config


def test_the_chart_is_named_and_versioned_as_the_package() -> None:
    from slipstream import __version__

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["name"], chart["appVersion"]) == ("slipstream", __version__)
