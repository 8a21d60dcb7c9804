"""Parameters of requests that would change what is sampled.

The policy is trained with the logprobs of the run's own distribution, at `rollout.temperature` over the whole
vocabulary. A request can shorten a turn (`max_tokens`, `stop`), but it cannot change this distribution. A
parameter that would is either without effect or refused, as `data.environment.sampling` says.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

KNOWN: Final = frozenset(
    {
        *("model", "messages", "prompt", "max_tokens", "max_completion_tokens", "stream", "stream_options"),
        *("tools", "logprobs", "top_logprobs", "n", "best_of", "echo", "suffix", "functions", "modalities"),
        "stop",
    }
)
"""Parameters that the endpoint implements or always refuses, whatever `data.environment.sampling` is."""
WITHOUT_MEANING: Final = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "seed"}
)
"""Parameters that change no distribution, and do nothing here. Equal seeds in the members of a group would
make their samples equal."""


def _is(*neutral: object) -> Callable[[Any], bool]:
    return lambda value: value in neutral


def _plain_format(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "text"


NEUTRAL: Final[Mapping[str, Callable[[Any], bool]]] = {
    "top_p": _is(1),
    "top_k": _is(-1, 0),
    "min_p": _is(0),
    "frequency_penalty": _is(0),
    "presence_penalty": _is(0),
    "repetition_penalty": _is(1),
    "logit_bias": _is({}),
    "tool_choice": _is("auto", "none"),
    "parallel_tool_calls": _is(True),
    "response_format": _plain_format,
}
"""Parameter → whether a value of it leaves the distribution as it is."""


def changed(body: Mapping[str, Any], *, temperature: float) -> list[str]:
    """Return the names of a request's parameters that the run's sampling does not carry out."""
    neutral = {**NEUTRAL, "temperature": _is(temperature)}
    return sorted(
        name
        for name, value in body.items()
        if value is not None
        and name not in KNOWN | WITHOUT_MEANING
        and not (name in neutral and neutral[name](value))
    )
