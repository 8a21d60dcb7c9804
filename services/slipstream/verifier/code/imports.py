"""The imports of a text of assertions; its calls may use the modules of Python's library that it imports."""

import ast
import sys

LIBRARY = sys.stdlib_module_names - {"__future__", "code"}  # `code` is the usual name of a solution's module


class UnusableTest(ValueError):
    """A test that cannot be split between two processes, or cannot be parsed; the message quotes it."""


def parsed(text: str) -> ast.Module:
    """Parse a text. Errors: UnusableTest if it is not Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise UnusableTest(f"not Python: {error}") from error


def imports(text: str) -> str:
    """Return the imports of Python's library, as code: the calls may use them. Errors: UnusableTest."""
    statements = [node for node in ast.walk(parsed(text)) if _of_library(node)]
    modules = [f"import {name}" for node in statements for name in _modules(node)]
    return "\n".join([*map(ast.unparse, statements), *modules])


def check_modules(tree: ast.Module) -> None:
    """Errors: UnusableTest if the text uses a module that programs cannot import."""
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import) and not _of_library(node)]
    absent = {alias.asname or alias.name.partition(".")[0] for node in imported for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in absent:
            raise UnusableTest(f"`{node.id}` is a module that programs do not have")


def names_of_library(tree: ast.Module) -> dict[str, ast.expr]:
    """Return imported name → full name, such as `math.isclose`, so that library functions are recognised."""
    return {
        alias.asname or alias.name: ast.parse(f"{before}{alias.name}", mode="eval").body
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom) and _of_library(node)
        for before in [f"{node.module}." if isinstance(node, ast.ImportFrom) else ""]
        for alias in node.names
        if alias.name != "*"
    }


def _of_library(node: ast.AST) -> bool:
    """Return whether a statement imports Python's library; `from solution import f` imports the program."""
    modules = _modules(node)
    return bool(modules) and all(name.partition(".")[0] in LIBRARY for name in modules)


def _modules(node: ast.AST) -> list[str]:
    match node:
        case ast.ImportFrom(module=str(module), level=0):
            return [module]
        case ast.Import(names=names):
            return [alias.name for alias in names]
    return []
