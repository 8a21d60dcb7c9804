"""Loads a configured function by its name, `package.module:function`."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

ENTRY_POINTS = "slipstream.rewards"
"""Group of entry points under which a package registers its rewards."""


def named_function(function: str | None, *, entry_point: str | None) -> str:
    """Return `function`, or the `module:function` of an entry point. Errors: ValueError."""
    if function is not None:
        return function
    from importlib.metadata import entry_points  # slow to import: a third of the start of a verifier's child

    points = entry_points(group=ENTRY_POINTS)
    for point in points:
        if point.name == entry_point:
            return point.value
    installed = ", ".join(sorted(point.name for point in points)) or "none at all"
    raise ValueError(f"no entry point {entry_point!r} in the group {ENTRY_POINTS}; installed: {installed}")


class FunctionMissing(ValueError):
    """There is no function at an import path. `remedy` is empty where the reason implies it."""

    def __init__(self, reason: str, *, remedy: str = "") -> None:
        super().__init__(f"{reason}; {remedy}" if remedy else reason)
        self.reason, self.remedy = reason, remedy


def load_function(name: str) -> Callable[..., Any]:
    """Return the function at an import path. Errors: FunctionMissing; errors of the module's import."""
    module_name, separator, path = name.partition(":")
    if not separator or not module_name or not path:
        raise FunctionMissing(f"{name!r} is not of the form package.module:function")
    try:
        target: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        reason = f"{name}: {error} (in {Path.cwd()} or what is installed)"
        raise FunctionMissing(reason, remedy="is it on the PYTHONPATH?") from error
    for part in path.split("."):
        target = getattr(target, part, None)
    if not callable(target):
        kind = "" if target is None else f", but a value of the type {type(target).__name__}"
        raise FunctionMissing(f"{name}: {module_name} has no function `{path}`{kind}")
    return target  # type: ignore[no-any-return]
