"""What the trial of an objective or an advantage found, as the trial's process writes it. Without torch."""

import json
from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One identity, and why it does not hold."""

    name: str
    failure: str = ""
    """Empty where it holds."""
    severity: Literal["error", "note"] = "note"
    """Whether `slipstream validate` refuses a run with a function for which the identity does not hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unusable:
    """Why a function cannot be imported, called or trained with."""

    key: str
    """The key of the section that is wrong: `function` or `arguments`; of a built-in kind the parameter."""
    reason: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a trial."""

    unusable: Unusable | None = None
    """None where the function was called."""
    identities: tuple[Identity, ...] = ()
    untested: tuple[str, ...] = ()
    """The identities for which the time was too short."""

    def to_json(self) -> str:
        """Return the report on one line; `report_from_json` reads it."""
        return json.dumps(asdict(self))


def report_from_json(text: str) -> Report:
    """Return the report of a line. Errors: ValueError, TypeError or KeyError for another text."""
    tree = json.loads(text)
    return Report(
        unusable=None if tree["unusable"] is None else Unusable(**tree["unusable"]),
        identities=tuple(Identity(**each) for each in tree["identities"]),
        untested=tuple(tree["untested"]),
    )
