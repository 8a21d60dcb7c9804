"""docs/agents.md: its agent is that of the example, its configuration is valid, its tables are complete."""

import ast
from pathlib import Path

import pytest
import yaml
from docs.test_verifier_pages import blocks, table
from slipstream.actor.program.parameters import NEUTRAL, WITHOUT_MEANING
from slipstream.cli.checks.environment import check_environment
from slipstream.config import parse_config
from slipstream.config.checks import check_config

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/agents.md").read_text(encoding="utf-8")


def bare(source: str) -> str:
    """Return the code without comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.unparse(tree)


def test_the_agent_of_the_page_is_that_of_the_example() -> None:
    (code,) = blocks(PAGE, "python")
    assert bare(code) == bare((ROOT / "examples/agent_program.py").read_text(encoding="utf-8"))


def test_the_configuration_of_the_page_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    (section,) = blocks(PAGE, "yaml")
    monkeypatch.chdir(ROOT)
    config = parse_config(yaml.safe_load(section))
    problems = [*check_config(config), *check_environment(config)]
    assert [str(problem) for problem in problems if problem.severity == "error"] == []


def test_a_missing_program_is_reported_with_its_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (section,) = blocks(PAGE, "yaml")
    monkeypatch.chdir(tmp_path)
    config = parse_config(yaml.safe_load(section))
    (problem,) = [each for each in check_environment(config) if each.severity == "error"]
    assert problem.key == "data.environment.command"
    assert "agent_program.py" in problem.reason


def test_the_table_of_parameters_has_every_parameter_that_the_endpoint_ignores_or_checks() -> None:
    named = " ".join(table(PAGE, "parameter"))
    assert [name for name in sorted(WITHOUT_MEANING) if f"`{name}`" not in named] == []
    assert [name for name in sorted(NEUTRAL) if f"`{name}" not in named] == []
