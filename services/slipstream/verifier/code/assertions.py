"""Split assertions as in MBPP and HumanEval: the process of the program evaluates only the call.

Forms, a value on either side:  assert f(1) == [2]   assert f(1) is None   assert f(1)   assert not f(1)
assert abs(f(1) - 0.5) < 1e-6   assert math.isclose(f(1), 0.5, abs_tol=1e-6)   and these joined by `and`.
They are at the top level of the text, or in `def check(candidate)`. Then the field `entry_point`, or a call
check(NAME) in the text, names the candidate.
Any other assertion is refused, because the process of the program would decide whether the program is right.
After the program has run, its process imports the modules of Python's library that the text imports.
"""

import ast
import builtins
import math
import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from slipstream.verifier.code import compare, length
from slipstream.verifier.code.imports import LIBRARY, UnusableTest, check_modules, names_of_library, parsed

Check = Callable[[Any], bool]
Close = Callable[[float, float], bool]
PLAIN: dict[str, Callable[[Any], Any]] = {
    "set": set,
    "frozenset": frozenset,
    "tuple": tuple,
    "list": list,
    "dict": dict,
    "sorted": sorted,
}
"""Functions that may enclose an expected value."""


def assertions(text: str, entry_point: str | None = None) -> list[tuple[str, Check]]:
    """Return the call of each assertion, and the check of its value. Errors: UnusableTest."""
    tree = parsed(text)
    check_modules(tree)
    body = _Rename(names_of_library(tree)).visit(tree).body
    checked = _entry_point(body) or entry_point
    checks: list[tuple[str, Check]] = []
    for statement in body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "check":
            checks += _of_function(statement, checked)
        elif not _ignored(statement):
            checks += _of_statement(statement)
    return checks


def _of_function(function: ast.FunctionDef, checked: str | None) -> Iterator[tuple[str, Check]]:
    if not checked or len(function.args.args) != 1:
        raise UnusableTest("check(candidate): the field `entry_point` is needed, or check(NAME) in the text")
    try:
        called = ast.parse(checked, mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise UnusableTest(f"the field `entry_point` is no expression: {error}") from error
    rename = _Rename({function.args.args[0].arg: called})
    for statement in function.body:
        if not _ignored(statement):
            yield from _of_statement(rename.visit(statement))


def _of_statement(statement: ast.stmt) -> Iterator[tuple[str, Check]]:
    if not isinstance(statement, ast.Assert):
        raise UnusableTest(f"only assertions are supported: {_quoted(statement)}")
    for part in _parts(statement.test):
        if not (isinstance(part, ast.Constant) and part.value is True):
            call, check = _split(part)
            yield ast.unparse(call), check


def _parts(test: ast.expr) -> list[ast.expr]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return [part for value in test.values for part in _parts(value)]
    return [test]


def _split(test: ast.expr) -> tuple[ast.expr, Check]:
    """Return the call of an assertion, and the check of the value that the call returns."""
    match test:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            return _equal(left, right)
        case ast.Compare(
            left=left, ops=[ast.Is()], comparators=[ast.Constant(value=None | True | False as value)]
        ):
            return _checked(left, value), lambda sent: sent is value
        case ast.Compare(
            left=ast.Call(func=ast.Name(id="abs"), args=[ast.BinOp(left=left, op=ast.Sub(), right=right)]),
            ops=[ast.Lt() | ast.LtE() as sign],
            comparators=[bound],
        ):
            return _close(left, right, _within(_value(bound), inclusive=isinstance(sign, ast.LtE)))
        case ast.Call(func=ast.Attribute(value=ast.Name(id="math"), attr="isclose"), args=[left, right]):
            return _close(left, right, _isclose(test.keywords))
        case ast.UnaryOp(op=ast.Not(), operand=ast.Call() as call) if _of_program(call):
            return call, lambda sent: compare.truth(sent) is False
        case ast.Call() if _of_program(test):
            return test, lambda sent: compare.truth(sent) is True
    raise UnusableTest(f"an assertion that the program itself would judge: {_quoted(test)}")


def _equal(left: ast.expr, right: ast.expr) -> tuple[ast.expr, Check]:
    call, expected = _sides(left, right)
    return _checked(call, expected), lambda sent: compare.equals_python(expected, sent)


def _checked(call: ast.expr, expected: Any) -> ast.expr:
    """Return the call. Errors: UnusableTest if the program would evaluate the comparison itself."""
    asks = isinstance(call, ast.Compare | ast.BoolOp) or (
        isinstance(call, ast.Call) and not _of_program(call)
    )
    if isinstance(expected, bool) and (asks or isinstance(call, ast.UnaryOp)):
        raise UnusableTest(f"an assertion that the program itself would judge: {_quoted(call)} is {expected}")
    return call


def _within(bound: Any, *, inclusive: bool) -> Close:
    if not isinstance(bound, int | float):
        raise UnusableTest(f"a number is needed, not {bound!r}")
    below = operator.le if inclusive else operator.lt
    return lambda value, expected: bool(below(abs(value - expected), bound))


def _isclose(keywords: list[ast.keyword]) -> Close:
    tolerances = {str(keyword.arg): _value(keyword.value) for keyword in keywords}
    try:
        math.isclose(0.0, 0.0, **tolerances)
    except (TypeError, ValueError, OverflowError) as error:
        raise UnusableTest(f"math.isclose: {error}") from error
    return partial(math.isclose, **tolerances)


def _close(left: ast.expr, right: ast.expr, close: Close) -> tuple[ast.expr, Check]:
    call, expected = _sides(left, right)
    if not isinstance(expected, int | float):
        raise UnusableTest(f"a number is needed: {_quoted(right)}")

    def check(sent: Any) -> bool:
        value = compare.scalar(sent)
        if not isinstance(value, int | float):
            return False
        try:
            return close(value, expected)
        except OverflowError:
            return False

    return call, check


def _sides(left: ast.expr, right: ast.expr) -> tuple[ast.expr, Any]:
    """Return the side that the program evaluates, and the value of the other side."""
    for call, literal in ((left, right), (right, left)):
        try:
            expected = _value(literal)
        except UnusableTest:
            continue
        if any(isinstance(node, ast.Call) for node in ast.walk(call)):
            length.check_value(expected, "an assertion")
            return call, expected
    raise UnusableTest(f"one side must be a plain value: {_quoted(left)} == {_quoted(right)}")


def _value(node: ast.expr) -> Any:
    """Return the value of a literal, perhaps within a function of PLAIN. Errors: UnusableTest."""
    try:
        match node:
            case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]) if name in PLAIN:
                return PLAIN[name](_value(inner))
            case ast.Call(func=ast.Name(id=name), args=[], keywords=[]) if name in PLAIN and name != "sorted":
                return PLAIN[name](())
            case ast.Set(elts=elements):
                return {_value(element) for element in elements}
            case ast.List(elts=elements):
                return [_value(element) for element in elements]
            case ast.Tuple(elts=elements):
                return tuple(_value(element) for element in elements)
        return ast.literal_eval(node)
    except (ValueError, TypeError) as error:
        raise UnusableTest(f"not a plain value: {_quoted(node)}") from error


def _of_program(call: ast.Call) -> bool:
    """Return whether a call is of a function of the program.

    A program can replace builtins and library functions, so their verdict on its values is not trusted.
    """
    root = call.func
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name):
        return True
    return not hasattr(builtins, root.id) and (root is call.func or root.id not in LIBRARY)


def _entry_point(body: list[ast.stmt]) -> str | None:
    for statement in body:
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Name(id="check"), args=[ast.Name(id=name)])):
                return name
    return None


def _ignored(statement: ast.stmt) -> bool:
    """Return whether a statement tests nothing: text, import, `pass`, METADATA, or the call of check()."""
    match statement:
        case ast.Pass() | ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign(targets=[ast.Name(id="METADATA")]):
            return True
        case ast.Expr(value=ast.Call(func=ast.Name(id="check"))):
            return True
    return False


def _quoted(node: ast.AST) -> str:
    return f"`{ast.unparse(node)[:120]}`"


class _Rename(ast.NodeTransformer):
    """Replaces names by expressions."""

    def __init__(self, new: dict[str, ast.expr]) -> None:
        self._new = new

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return the expression that replaces a name, or the name."""
        return self._new.get(node.id, node)
