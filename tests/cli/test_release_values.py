"""The values of a release are those that helm computes from the same options."""

import tomllib
from pathlib import Path
from typing import Any

import helm_python
import pytest
import slipstream
import yaml
from render import CHART, ROOT, examples
from slipstream.cli.errors import UsageError
from slipstream.cli.release.quantity import size_of
from slipstream.cli.release.values import read_values, with_set

EXPRESSIONS = [
    "a=1",
    "a.b.c=two",
    "a=true,b=false,c=null,d=0",
    "a=1.5,b=007,c=-3,d=",
    "a={x,y,3}",
    "a[0]=x",
    "a[2].b=y,a[0].b=z",
    r"a\.b.c=d",
    r"a=x\,y,b=z",
    "a=b=c",
    "a[1][0]=x",
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_of_set_is_parsed_as_by_helm(expression: str) -> None:
    assert with_set({}, expression) == helm_python.parse_set_string(expression)


@pytest.mark.parametrize("expression", ["a", "=b"])
def test_an_expression_without_a_key_and_a_value_is_refused(expression: str) -> None:
    with pytest.raises(UsageError, match="write it as KEY=VALUE"):
        with_set({}, expression)


@pytest.mark.parametrize("file", examples(), ids=lambda file: file.stem)
def test_a_file_of_values_is_merged_over_the_charts_values_as_by_helm(file: Path) -> None:
    with helm_python.Chart.load(CHART) as chart:
        merged = chart.merge_values(yaml.safe_load(file.read_text(encoding="utf-8")))
    assert without_nulls(read_values([file])) == without_nulls(merged)


def test_later_files_and_options_win_and_null_removes_a_value(tmp_path: Path) -> None:
    first, code = write(tmp_path, "a", {"learner": {"gpu": {"count": 4}, "nodes": 2}}), tmp_path / "m.py"
    second = write(tmp_path, "b", {"learner": {"gpu": {"count": 8}}})
    code.write_text("x = 1\n", encoding="utf-8")
    values = read_values(
        [first, second], ["learner.ranksPerNode=1,redis.labels=null"], [rf"verifier.code.mine\.py={code}"]
    )
    assert (values["learner"]["nodes"], values["learner"]["gpu"]["count"]) == (2, 8)
    assert values["learner"]["gpu"]["resource"] == "nvidia.com/gpu"
    assert values["verifier"]["code"] == {"mine.py": "x = 1\n"}
    assert "labels" not in values["redis"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learner": {"gpus": 4}}, "learner: Additional properties are not allowed ('gpus' was unexpected)"),
        ({"learner": 4}, "learner: must have keys, as in the chart's values.yaml, and is 4"),
        ({"learner": {"nodes": "two"}}, "learner.nodes: 'two' is not of type 'integer'"),
        ({"redis": {"auth": None}}, "redis: 'auth' is a required property"),
    ],
)
def test_the_error_names_values_that_the_chart_refuses(tmp_path: Path, values: Any, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_values([write(tmp_path, "a", values)])
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((["missing.yaml"],), "missing.yaml (in "),
        (([], [], ["run.config"]), "--set-file run.config: write it as KEY=FILE"),
        (([], [], ["run.config=missing.yaml"]), "No such file"),
    ],
)
def test_the_error_names_a_missing_file(options: tuple[list[str], ...], message: str) -> None:
    files, *more = options
    with pytest.raises(UsageError) as raised:
        read_values([Path(file) for file in files], *more)
    assert message in str(raised.value)


def test_the_files_of_the_chart_are_installed_with_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    package = Path(slipstream.__file__).parent
    patterns = project["tool"]["setuptools"]["package-data"]["slipstream"]
    installed = {file.name for pattern in patterns for file in package.glob(pattern)}
    assert {"values.yaml", "values.schema.json"} <= installed


def test_quantities_are_parsed_as_by_kubernetes() -> None:
    sizes = {
        "128Gi": 128 * 2**30,
        "1.5Gi": 3 * 2**29,
        "500M": 5 * 10**8,
        "1024": 1024,
        2: 2,
        "1e3": None,
        None: None,
    }
    assert {text: size_of(text) for text in sizes} == sizes


def without_nulls(tree: Any) -> Any:
    """Return a tree without nulls: helm drops some of the chart's nulls, and templates ignore the others."""
    if not isinstance(tree, dict):
        return tree
    return {key: without_nulls(value) for key, value in tree.items() if value is not None}


def write(folder: Path, name: str, values: Any) -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    return file
