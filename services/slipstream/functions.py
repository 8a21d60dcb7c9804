"""Functions by name, `package.module:function`: how code that was configured is found, in any process."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

ENTRY_POINTS = "slipstream.rewards"
"""Group of entry points in which a package offers its rewards."""


def named_function(function: str | None, *, entry_point: str | None) -> str:
    """`module:function` of a function that is given so, or by its entry point. Errors: ValueError."""
    if function is not None:
        return function
    from importlib.metadata import entry_points  # a third of the start of a child that does not need it

    found = entry_points(group=ENTRY_POINTS)
    for point in found:
        if point.name == entry_point:
            return point.value
    known = ", ".join(sorted(point.name for point in found)) or "none at all"
    raise ValueError(f"no entry point {entry_point!r} in the group {ENTRY_POINTS}; installed: {known}")


def load_function(name: str) -> Callable[..., Any]:
    """The function of that name. Errors: ValueError saying what is missing; whatever its module raises."""
    module_name, separator, path = name.partition(":")
    if not separator or not module_name or not path:
        raise ValueError(f"{name!r} is not of the form package.module:function")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{name}: {error} (in {Path.cwd()} or what is installed); is it on the PYTHONPATH?"
        ) from error
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ValueError(f"{name}: {module_name} has no function `{path}`")
    return found  # type: ignore[no-any-return]
