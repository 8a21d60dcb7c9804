"""Can the user's own objective and advantage be imported and called? A child process tries them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Final

from slipstream.algorithms.spec import CustomAdvantage, CustomObjective
from slipstream.config import RunConfig
from slipstream.config.problem import Problem

PROGRAM: Final = "slipstream.algorithms.identities"
SECONDS: Final = 120.0
"""Time for the imports of torch and of the user's modules, and for one call."""
REMEDIES: Final = {
    "objective": "it is called as function(tokens, **arguments) and returns the loss of each token, "
    "[T] with a gradient; `slipstream algorithms check` tests it, docs/algorithms.md describes it",
    "advantage": "it is called as function(completions, **arguments) and returns one advantage for each "
    "completion, [B]; docs/algorithms.md describes it",
}


def check_functions(config: RunConfig) -> Iterator[Problem]:
    """Problems of an objective and an advantage of the kind `custom`."""
    parts = {
        "objective": config.algorithm.resolved_objective(),
        "advantage": config.algorithm.resolved_advantage(),
    }
    for axis, part in parts.items():
        if isinstance(part, CustomObjective | CustomAdvantage):
            section = json.dumps(asdict(part), default=str)
            reason = _why_unusable(axis, section, str(Path.cwd()))
            if reason:
                yield Problem(
                    key=f"algorithm.{axis}.function",
                    reason=f"cannot be used: {reason}",
                    remedy=REMEDIES[axis],
                )


@lru_cache(maxsize=8)
def _why_unusable(axis: str, section: str, folder: str) -> str:
    """What the child process says; stages of a run often have the same function."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", PROGRAM, "call", axis, section],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
        answer: dict[str, str] = json.loads(done.stdout.strip().rpartition("\n")[2])
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        last = str(getattr(error, "stderr", "") or error).strip().rpartition("\n")[2]
        return f"the process that called it ended: {last}"
    return answer["unusable"]
