"""The policy objectives: from the tokens of a microbatch to the surrogate J of each and its gradient."""

from collections.abc import Callable
from functools import cache
from typing import Any

from slipstream.algorithms.objectives.surrogate import Surrogate, Tokens
from slipstream.algorithms.spec import Objective
from slipstream.functions import load_function

__all__ = ["Surrogate", "Tokens", "surrogate"]


def surrogate(spec: Objective, tokens: Tokens) -> Surrogate:
    """Return the objective's surrogate of each token; everything in and out is a constant."""
    result: Surrogate = _function(spec.implementation)(spec, tokens)
    return result


@cache
def _function(name: str) -> Callable[[Any, Tokens], Surrogate]:
    return load_function(name)
