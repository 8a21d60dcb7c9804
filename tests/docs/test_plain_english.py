"""The rules of plain English that a program can check: no banned names, metaphors or hanging comments."""

import ast
import re
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "services/slipstream"
TREES = ("services", "tests", "benchmarks", "charts", "deploy", "docker", "docs", "examples")
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
GENERATED = {"v1", "node_modules", "__pycache__", "build"}
LOCALS = {"asked", "found", "given", "here", "known", "said", "whole"}
"""Names of variables that do not say what the variable holds."""
NAME_IT = "rename the variable after what it holds, such as `names` or `reward`"
METAPHORS = {
    *("dealer", "entrance", "leash", "meeting", "relay", "room", "siege", "surroundings", "tether", "wall"),
    *("walls", "warden", "give_back", "hand_back", "put_back", "look_ahead", "unless_it_fails"),
}
"""Words in the names of modules, classes and functions for which the field has its own word."""
RELATIVE = re.compile(r"#\s*(which|who|whose|whom|that|where|whereby)\b", re.IGNORECASE)
HANGING_DOCSTRING = re.compile(r"\s*(who|whose|whom|that)\b", re.IGNORECASE)
"""Beginnings of a docstring whose noun is elsewhere. «Where the server is» and «which rank» are complete."""


@cache
def files() -> tuple[Path, ...]:
    """The Python files that people write."""
    paths = (path for tree in TREES for path in (ROOT / tree).rglob("*.py"))
    return tuple(sorted(path for path in paths if not GENERATED & {*path.parts}))


def definitions(tree: ast.AST) -> Iterator[str]:
    """The names of the classes and functions of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | FUNCTIONS):
            yield node.name


def variables(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The names and lines of the variables that a module assigns, and of its arguments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno


def words(name: str) -> set[str]:
    """The snake_case and CamelCase parts of a name in lower case, and the name itself."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_")
    return {snake, *snake.split("_")}


def hanging_comments(path: Path) -> list[str]:
    """The comments of a file that begin with a relative pronoun."""
    with path.open("rb") as source:
        comments = [t for t in tokenize.tokenize(source.readline) if t.type == tokenize.COMMENT]
    lines = {comment.start[0] for comment in comments if comment.line.strip().startswith("#")}
    return [
        f"{path}:{comment.start[0]}: {comment.string}"
        for comment in comments
        if RELATIVE.match(comment.string) and comment.start[0] - 1 not in lines
    ]


def test_no_comment_begins_with_a_relative_pronoun() -> None:
    hanging = [comment for path in files() for comment in hanging_comments(path)]
    assert hanging == [], "begin the comment with the noun that the pronoun stands for"


def docstrings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The docstrings of a module, its classes, functions and attributes, with their lines."""
    for node in ast.walk(tree):
        for statement in node.body if isinstance(node, ast.Module | ast.ClassDef | FUNCTIONS) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str() as text)):
                    yield text, statement.lineno


def hanging_docstrings(source: str) -> list[int]:
    """The lines of the docstrings of a module that begin with a relative or demonstrative pronoun."""
    return [line for text, line in docstrings(ast.parse(source)) if HANGING_DOCSTRING.match(text)]


def test_no_docstring_begins_with_a_pronoun_whose_noun_is_elsewhere() -> None:
    hanging = {
        str(path.relative_to(ROOT)): hanging_docstrings(path.read_text(encoding="utf-8")) for path in files()
    }
    assert {path: lines for path, lines in hanging.items() if lines} == {}, (
        "begin the docstring with the noun that the pronoun stands for"
    )


@pytest.mark.parametrize(
    ("docstring", "lines"),
    [("Whose mean is subtracted.", [2]), ("Where the server is.", []), ("The mean of all tokens.", [])],
)
def test_a_hanging_docstring_is_found(docstring: str, lines: list[int]) -> None:
    assert hanging_docstrings(f'x = 1\n"""{docstring}"""\n') == lines


def test_no_module_class_or_function_is_named_by_a_metaphor() -> None:
    named = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in files()
        for name in (path.stem, *definitions(ast.parse(path.read_text(encoding="utf-8"))))
        if METAPHORS & words(name)
    }
    assert sorted(named) == [], "rename it after what it does, in the words of the field"


def vague_variables(folder: Path) -> list[str]:
    """The variables of a folder whose names are in LOCALS, with file and line."""
    return [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in files()
        if path.is_relative_to(folder)
        for name, line in variables(ast.parse(path.read_text(encoding="utf-8")))
        if name in LOCALS
    ]


def test_a_variable_of_the_sources_is_named_after_what_it_holds() -> None:
    vague = vague_variables(PACKAGE)
    assert vague == [], NAME_IT


@pytest.mark.parametrize("tree", ["tests", "benchmarks", "deploy", "docker", "docs"])
def test_a_variable_of_other_code_is_named_after_what_it_holds(tree: str) -> None:
    vague = vague_variables(ROOT / tree)
    assert vague == [], NAME_IT


def test_no_module_of_the_top_hides_one_of_the_standard_library() -> None:
    """A Python that is started in services/slipstream imports the modules of that folder first."""
    modules = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert modules & sys.stdlib_module_names == set(), "rename the module"


@pytest.mark.parametrize(
    ("comment", "hanging"),
    [
        ("x = 1  # which takes it off each token", True),
        ("# Whose certificate it is", True),
        ("x = 1  # the token that was sampled", False),
        ("# the comment goes on in a line\n# that begins with a pronoun", False),
    ],
)
def test_a_hanging_comment_is_found(comment: str, hanging: bool, tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(comment + "\n")
    assert bool(hanging_comments(file)) == hanging


@pytest.mark.parametrize(
    ("name", "parts"),
    [("WatchDog", {"watch_dog", "watch", "dog"}), ("give_back", {"give_back", "give", "back"})],
)
def test_a_name_is_taken_apart(name: str, parts: set[str]) -> None:
    assert words(name) == parts
