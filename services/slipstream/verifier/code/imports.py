"""What a text of assertions imports: of Python's library it is there for their calls, and shows as such."""

import ast
import sys

LIBRARY = sys.stdlib_module_names - {"__future__", "code"}  # `code` is a solution's file


class UnusableTest(ValueError):
    """A test that cannot be had in two processes, or cannot be read; the message quotes it."""


def parsed(text: str) -> ast.Module:
    """Errors: UnusableTest for what is no Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise UnusableTest(f"not Python: {error}") from error


def imports(text: str) -> str:
    """What it imports of Python's library, as code: its calls may name it. Errors: UnusableTest."""
    statements = [node for node in ast.walk(parsed(text)) if _of_library(node)]
    modules = [f"import {name}" for node in statements for name in _modules(node)]
    return "\n".join([*map(ast.unparse, statements), *modules])


def check_modules(tree: ast.Module) -> None:
    """Errors: UnusableTest where a module is used that no program has."""
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import) and not _of_library(node)]
    absent = {alias.asname or alias.name.partition(".")[0] for node in imported for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in absent:
            raise UnusableTest(f"`{node.id}` is a module that programs do not have")


def names_of_library(tree: ast.Module) -> dict[str, ast.expr]:
    """Names that are imported, as `math.isclose` or `math`: what is Python's own shows."""
    return {
        alias.asname or alias.name: ast.parse(f"{before}{alias.name}", mode="eval").body
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom) and _of_library(node)
        for before in [f"{node.module}." if isinstance(node, ast.ImportFrom) else ""]
        for alias in node.names
        if alias.name != "*"
    }


def _of_library(node: ast.AST) -> bool:
    """Whether it is an import of Python's library; `from solution import f` is of the program itself."""
    modules = _modules(node)
    return bool(modules) and all(name.partition(".")[0] in LIBRARY for name in modules)


def _modules(node: ast.AST) -> list[str]:
    match node:
        case ast.ImportFrom(module=str(module), level=0):
            return [module]
        case ast.Import(names=names):
            return [alias.name for alias in names]
    return []
