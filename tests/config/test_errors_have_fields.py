"""Errors carry fields: no module cuts the text of an error apart to get at a key, a reason or a remedy."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from slipstream.algorithms import resolve_loss
from slipstream.algorithms.spec.invalid import InvalidPart

PACKAGE = Path(__file__).resolve().parents[2] / "services/slipstream"
CUTS = {"partition", "rpartition", "split", "rsplit", "removeprefix", "removesuffix", "find", "index"}
BY_LINE = {"\n"}
"""Separators at which a text may be cut: a message shows the first or last line of a long one."""
ONLY_TEXT = {
    "cuda.py": "torch states the reason of a driver error in the first sentence of its text",
    "replay/redis_errors.py": "Redis sends the error of a script as text",
    "samples/database.py": "DuckDB appends the query to the text of an error",
}
"""Module → why the other side sends no fields."""


def names_of_errors(tree: ast.AST) -> set[str]:
    """The names that hold an exception: those of `except … as name`, and arguments of an exception's type."""
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name}
    arguments = [node for node in ast.walk(tree) if isinstance(node, ast.arg) and node.annotation]
    kinds = ("Error", "Exception", "Invalid")
    return names | {a.arg for a in arguments if ast.unparse(a.annotation or a).endswith(kinds)}


def is_text_of(node: ast.AST, names: set[str], texts: set[str]) -> bool:
    """Whether an expression has the text of an error in it: str(error), error.args, or a name of the text."""
    for part in ast.walk(node):
        match part:
            case ast.Name(id=name) if name in texts:
                return True
            case ast.Call(func=ast.Name(id="str" | "repr"), args=[argument, *_]):
                if any(isinstance(name, ast.Name) and name.id in names for name in ast.walk(argument)):
                    return True
            case ast.Attribute(value=ast.Name(id=name), attr="args") if name in names:
                return True
    return False


def cuts(source: str) -> Iterator[int]:
    """The lines of a module that cut the text of an error apart."""
    tree = ast.parse(source)
    for scope in ast.walk(tree):
        if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        names = names_of_errors(scope)
        assigned = [node for node in ast.walk(scope) if isinstance(node, ast.Assign)]
        texts = {
            target.id
            for node in assigned
            if is_text_of(node.value, names, set())
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(scope):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            separators = {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
            is_cut = node.func.attr in CUTS and node.args and not separators & BY_LINE
            if is_cut and is_text_of(node.func.value, names, texts):
                yield node.lineno


def test_no_module_cuts_the_text_of_an_error_apart() -> None:
    modules = {path: str(path.relative_to(PACKAGE)) for path in sorted(PACKAGE.rglob("*.py"))}
    places = [f"{name}:{line}" for path, name in modules.items() for line in cuts(path.read_text())]
    assert [place for place in places if place.rpartition(":")[0] not in ONLY_TEXT] == []
    assert {place.rpartition(":")[0] for place in places} == set(ONLY_TEXT), "an exception without a use"


@pytest.mark.parametrize(
    "line",
    [
        'key, _, reason = str(error).partition(": ")',
        'reason = str(error).removeprefix("prompt 1: ")',
        'reason = f"{error.args[0]}".split(";")[0]',
        'text = str(error)\n        reason = text.rsplit("; ", 1)[0]',
    ],
)
def test_the_check_sees_a_text_that_is_cut_apart(line: str) -> None:
    source = f"def read():\n    try:\n        work()\n    except ValueError as error:\n        {line}\n"
    assert list(cuts(source))
    assert not list(cuts(source.replace(line, "reason = str(error).splitlines()[0]")))


@pytest.mark.parametrize(
    ("loss", "part", "remedy"),
    [
        ({"objective": {"kind": "pg"}, "max_staleness": 3}, "max_staleness", "use cispo or ppo_clip"),
        ({"objective": {"kind": "cispo", "clip_hihg": 1}}, "objective cispo", ""),
        ({"objective": {"kind": "is", "clip_low": 0.1}}, "objective is", "is has no band; use ppo_clip"),
        ({"objective": {"kind": "ppo_clip"}, "correction": {"kind": "tis"}}, "correction", "anchor to batch"),
    ],
)
def test_the_error_of_a_wrong_loss_has_the_part_and_the_remedy(
    loss: dict[str, object], part: str, remedy: str
) -> None:
    with pytest.raises(InvalidPart) as raised:
        resolve_loss({"aggregation": "token_mean", **loss})
    error = raised.value
    assert (error.part, remedy in error.remedy) == (part, True)
    assert str(error) == "; ".join(filter(None, (f"{part}: {error.reason}", error.remedy)))


def test_a_specification_raises_its_own_error_only() -> None:
    folder = PACKAGE / "algorithms"
    for path in (*sorted((folder / "spec").glob("*.py")), folder / "resolve.py"):
        raised = [n.exc for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Raise) and n.exc]
        kinds = {ast.unparse(call.func) for call in raised if isinstance(call, ast.Call)}
        assert kinds <= {"InvalidPart"}, path
