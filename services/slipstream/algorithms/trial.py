"""Try an objective or an advantage: import it, call it, and test its identities.

Run as `python -m slipstream.algorithms.trial AXIS SECTION [SECONDS]`. AXIS is `objective` or `advantage`,
SECTION is this section of a run in JSON, and SECONDS the time for the identities; without it all are tested.
The last line of the standard output is the report in JSON; what the function prints goes to standard error.
"""

import contextlib
import inspect
import json
import math
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from slipstream.algorithms.identities import advantage_laws, call_advantage, call_objective, objective_laws
from slipstream.algorithms.resolve import resolve_advantage, resolve_loss, with_kind
from slipstream.algorithms.spec import Advantage, CustomAdvantage, CustomObjective, Objective, invalid
from slipstream.algorithms.trial_report import Identity, Report, Unusable
from slipstream.functions import FunctionMissing, load_function

CALLED_AS: Final = {
    "objective": "it is called as function(tokens, **arguments) and returns the loss of each token, "
    "[T] with a gradient; `slipstream algorithms check` tests it, docs/algorithms.md describes it",
    "advantage": "it is called as function(completions, **arguments) and returns one advantage for each "
    "completion, [B]; docs/algorithms.md describes it",
}
"""The remedy for a function that cannot be called, by axis."""


def try_section(section: Mapping[str, Any], *, axis: str, seconds: float = math.inf) -> Report:
    """Return why the function of a section cannot be used, or which identities it satisfies.

    section: the `objective` or `advantage` of a run, as axis says. seconds: time for the identities.
    """
    try:
        part = _part(section, axis)
    except invalid.InvalidPart as error:
        return Report(unusable=Unusable(key=error.part, reason=error.reason, remedy=error.remedy))
    unusable = _why_unusable(part, axis)
    return Report(unusable=unusable) if unusable else _tested(part, time.monotonic() + seconds)


def _part(section: Mapping[str, Any], axis: str) -> Objective | Advantage:
    if axis == "advantage":
        return resolve_advantage(section)
    return resolve_loss({"objective": with_kind(section), "aggregation": "token_mean"}).objective


def _why_unusable(part: Objective | Advantage, axis: str) -> Unusable | None:
    """Return why a function cannot be imported, called or trained with; None where it can be."""
    try:
        if isinstance(part, CustomObjective | CustomAdvantage):
            unfit = _unfit_signature(part, axis)
            if unfit is not None:
                return unfit
        if isinstance(part, Advantage):
            call_advantage(part)
        else:
            call_objective(part)
    except FunctionMissing as error:
        return Unusable(key="function", reason=error.reason, remedy=error.remedy or CALLED_AS[axis])
    except Exception as error:  # the function is the user's, and may raise anything
        return Unusable(key="function", reason=_described(error), remedy=CALLED_AS[axis])
    return None


def _unfit_signature(part: CustomObjective | CustomAdvantage, axis: str) -> Unusable | None:
    """Return why a function cannot be called with its arguments; None where it can be."""
    try:
        signature = inspect.signature(load_function(part.function))
    except (ValueError, TypeError) as error:
        if isinstance(error, FunctionMissing):
            raise
        return None  # a function in C may have no signature
    first = "tokens" if axis == "objective" else "completions"
    try:
        signature.bind_partial(None)
    except TypeError:
        reason = f"{part.function} takes no {first} as its first argument"
        return Unusable(key="function", reason=reason, remedy=CALLED_AS[axis])
    try:
        signature.bind(None, **part.arguments)
    except TypeError as error:
        names = ", ".join(list(signature.parameters)[1:]) or "none"
        return Unusable(
            key="arguments",
            reason=f"{part.function}: {error}",
            remedy=f"its arguments besides {first} are: {names}",
        )
    return None


def _tested(part: Objective | Advantage, end: float) -> Report:
    """Test one identity after the other until the time `end`."""
    identities: list[Identity] = []
    untested: list[str] = []
    for law in advantage_laws(part) if isinstance(part, Advantage) else objective_laws(part):
        if time.monotonic() > end:
            untested.append(law.name)
            continue
        try:
            identities.append(law.tested())
        except Exception as error:  # the function is the user's, and may raise anything
            identities.append(Identity(name=law.name, failure=_described(error), severity="error"))
    return Report(identities=tuple(identities), untested=tuple(untested))


def _described(error: Exception) -> str:
    """One line: the message of an error, and where the function raised it. A ValueError explains itself."""
    message = " ".join(str(error).split())
    if isinstance(error, ValueError):
        return message
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {message} ({Path(frame.filename).name}, line {frame.lineno})"


def main(arguments: Sequence[str]) -> int:
    """Try a section, and print the report on the last line."""
    axis, section, *seconds = arguments
    with contextlib.redirect_stdout(sys.stderr):
        report = try_section(
            json.loads(section), axis=axis, seconds=float(seconds[0]) if seconds else math.inf
        )
    print(report.to_json())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
