"""A child of the pool: `python -m slipstream.verifier.workers.child SOCKET PARENT MEMORY_MIB [FUNCTION ...]`.

It imports the functions' modules, reports that it is ready, and runs one job after the other, until its
parent closes the socket or dies. A job that exceeds the memory limit fails, and the child goes on.
"""

import resource
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from slipstream.answers.cpu_limit import TooSlow
from slipstream.functions import load_function
from slipstream.processes.frames import receive_frame, to_frame
from slipstream.processes.lifetime.parent_death import die_with_parent
from slipstream.prompts.prompt_json import prompt_from_json
from slipstream.verifier.reward import UnusableGroundTruth, Verdict, describe
from slipstream.verifier.workers.messages import answer_from_json, verdict_to_json

MIB = 1024 * 1024
STATM = Path("/proc/self/statm")


def main(argv: Sequence[str]) -> None:
    """Run jobs until the parent closes the socket or dies."""
    descriptor, parent, memory_mib = map(int, argv[:3])
    die_with_parent(parent)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_mib * MIB, memory_mib * MIB))
    with socket.socket(fileno=descriptor) as connection:
        connection.sendall(to_frame(_prepared(argv[3:])))
        while (job := receive_frame(connection)) is not None:
            reply = run_job(job)
            connection.sendall(to_frame({**reply, "worn": _worn(memory_mib)}))


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    """Return the verdicts of a job; or why there are none, under a key that says what is at fault."""
    try:
        return {"verdicts": [verdict_to_json(verdict) for verdict in _verdicts(job)]}
    except UnusableGroundTruth as error:
        return {"unusable": error.reason, "prompt": error.prompt_id}
    except MemoryError:
        return {"overrun": "MemoryError: it needs more than verifier.worker_memory_mib gives"}
    except (RecursionError, TooSlow) as error:
        return {"overrun": describe(error)}
    except (Exception, SystemExit) as error:
        return {"failed": describe(error)}


def as_verdict(result: object) -> Verdict:
    """Return the result of a reward's function as a verdict. Errors: TypeError, ValueError."""
    if isinstance(result, Verdict):
        steps = tuple(replace(step, value=_number(step.value)) for step in result.steps)
        return Verdict(
            value=_number(result.value), outcome=result.outcome, detail=str(result.detail), steps=steps
        )
    return Verdict(value=_number(result))


def _verdicts(job: dict[str, Any]) -> list[Verdict]:
    function: Callable[..., Any] = load_function(job["function"])
    prompt, answers = prompt_from_json(job["prompt"]), [answer_from_json(value) for value in job["answers"]]
    if not job["group"]:
        return [as_verdict(function(prompt, answer, **job["arguments"])) for answer in answers]
    results = list(function(prompt, answers, **job["arguments"]))
    if len(results) != len(answers):
        raise ValueError(f"{job['function']} returned {len(results)} scores for {len(answers)} answers")
    return [as_verdict(result) for result in results]


def _number(value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise TypeError(f"a score is a number, a bool or a Verdict, got {type(value).__name__}") from error
    if isinstance(value, str) or not isfinite(number):
        raise ValueError(f"a score is a finite number, got {value!r}")
    return number


def _prepared(functions: Sequence[str]) -> dict[str, Any]:
    """Import the functions, so that no job waits for it. Return the first frame: ready, or the failure."""
    for name in functions:
        try:
            load_function(name)
        except Exception as error:
            reason = str(error) if isinstance(error, ValueError) else describe(error)
            return {"unprepared": reason if reason.startswith(name) else f"{name}: {reason}"}
    return {"ready": True}


def _worn(memory_mib: int) -> bool:
    """Return whether the resident size between two jobs is over half of the limit, by fragments or a leak."""
    resident_pages = int(STATM.read_text(encoding="ascii").split()[1])
    return resident_pages * resource.getpagesize() > memory_mib * MIB // 2


if __name__ == "__main__":
    main(sys.argv[1:])
