"""Try the user's own objective and advantage: can they be called, and do their identities hold?"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Final

from slipstream.algorithms import spec, trial_report
from slipstream.cli.own_functions import TrialFailed, try_section
from slipstream.config import Problem, RunConfig

IDENTITY_SECONDS: Final = 10.0
"""Time for the identities of one function; those of a function on 21 tokens take a tenth of a second."""
LIMIT_SECONDS: Final = 120.0
"""Time for the imports of torch and of the user's modules, and for the identities."""
REMEDIES: Final = {
    "objective": "`slipstream algorithms check` tests the function alone; docs/algorithms.md describes it",
    "advantage": "docs/algorithms.md describes it",
}


def check_functions(config: RunConfig) -> Iterator[Problem]:
    """Problems of an objective and an advantage of the kind `custom`."""
    parts = {
        "objective": config.algorithm.resolved_objective(),
        "advantage": config.algorithm.resolved_advantage(),
    }
    for axis, part in parts.items():
        if isinstance(part, spec.CustomObjective | spec.CustomAdvantage):
            yield from _problems(axis, json.dumps(asdict(part), default=str))


def _problems(axis: str, section: str) -> Iterator[Problem]:
    key = f"algorithm.{axis}"
    report = _report(axis, section, str(Path.cwd()))
    if report.unusable is not None:
        yield Problem(
            key=f"{key}.{report.unusable.key}",
            reason=f"cannot be used: {report.unusable.reason}",
            remedy=report.unusable.remedy or REMEDIES[axis],
        )
    for identity in report.identities:
        if identity.failure:
            yield Problem(
                key=f"{key}.function",
                reason=f"breaks an identity, “{identity.name}”: {identity.failure}",
                remedy=REMEDIES[axis],
                severity=identity.severity,
            )
    if report.untested:
        yield Problem(
            key=f"{key}.function",
            reason=f"is slow: {len(report.untested)} identities were not tested in {IDENTITY_SECONDS:g} s",
            remedy=REMEDIES[axis],
            severity="note",
        )


@lru_cache(maxsize=8)
def _report(axis: str, section: str, folder: str) -> trial_report.Report:
    """Return what the child process says; stages of a run often have the same function."""
    try:
        return try_section(
            section, axis=axis, seconds=IDENTITY_SECONDS, limit=LIMIT_SECONDS, quiet=True, folder=folder
        )
    except TrialFailed as error:
        return trial_report.Report(unusable=trial_report.Unusable(key="function", reason=str(error)))
