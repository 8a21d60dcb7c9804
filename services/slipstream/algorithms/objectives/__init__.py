"""The policy objectives: from the tokens of a microbatch to the surrogate J of each and its gradient."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from slipstream.algorithms.objectives.divergence import dppo, ipo
from slipstream.algorithms.objectives.sequence import gmpo, gspo, rspo, vespo
from slipstream.algorithms.objectives.surrogate import Surrogate, Tokens, TopK
from slipstream.algorithms.objectives.token import (
    cispo,
    importance_sampling,
    pg,
    ppo_clip,
    rollout_is,
    sapo,
    topr,
)
from slipstream.algorithms.spec import Objective

__all__ = ["Surrogate", "Tokens", "TopK", "surrogate"]


def surrogate(spec: Objective, tokens: Tokens) -> Surrogate:
    """Compute the objective's surrogate of each token; everything in and out is a constant."""
    return _SURROGATES[spec.kind](spec, tokens)


_SURROGATES: Final[Mapping[str, Callable[[Any, Tokens], Surrogate]]] = MappingProxyType(
    {
        "pg": pg,
        "is": importance_sampling,
        "ppo_clip": ppo_clip,
        "cispo": cispo,
        "rollout_is": rollout_is,
        "sapo": sapo,
        "topr": topr,
        "gspo": gspo,
        "gspo_token": gspo,
        "gmpo": gmpo,
        "rspo": rspo,
        "vespo": vespo,
        "dppo": dppo,
        "ipo": ipo,
    }
)
