"""Which losses are compared: the catalogue, objectives of the user, or the candidates that are named."""

from collections.abc import Sequence
from dataclasses import asdict

from slipstream.algorithms.resolve import nearest
from slipstream.algorithms.spec import CustomObjective
from slipstream.algorithms.trial import try_section
from slipstream.lab.compare import Candidate


class UnknownCandidate(ValueError):
    """A named candidate is not among the losses, or an objective of the user cannot be used."""


def check_functions(functions: Sequence[str]) -> None:
    """Check that objectives of the user can be imported and called. Errors: UnknownCandidate."""
    for function in functions:
        try:
            section = asdict(CustomObjective(function=function))
        except ValueError as error:
            raise UnknownCandidate(str(error)) from error
        unusable = try_section(section, axis="objective", seconds=0).unusable
        if unusable is not None:
            remedy = f"; {unusable.remedy}" if unusable.remedy else ""
            raise UnknownCandidate(f"objective {function}: {unusable.reason}{remedy}")


def chosen(candidates: Sequence[Candidate], names: Sequence[str]) -> list[Candidate]:
    """Return the candidates with these names, all without names. Errors: UnknownCandidate."""
    available = list(dict.fromkeys(candidate.kind for candidate in candidates))
    for name in names:
        if name not in available:
            raise UnknownCandidate(
                f"candidates: got {name!r}, needs some of {', '.join(available)}{nearest(name, available)}"
            )
    return [candidate for candidate in candidates if not names or candidate.kind in names]
