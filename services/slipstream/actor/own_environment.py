"""Makes an environment of the kind `custom`: a class of the user."""

import inspect
from typing import Any

from slipstream.actor.environment import Environment, EpisodeBounds
from slipstream.actor.own_code import END_SECONDS
from slipstream.config import ConfigError, Problem
from slipstream.config.environments import CustomEnvironment, EnvironmentConfig, SingleTurnEnvironment
from slipstream.functions import FunctionMissing, load_function

KEY = "data.environment"
CALLED_AS = (
    "it is a class with `async def run(self, episode)`, made once per actor as Name(**arguments); "
    "docs/environments.md describes it"
)


class EnvironmentUnusable(ValueError):
    """The configured environment cannot be made. `problem` says why, with the key and the remedy."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def load_environment(config: CustomEnvironment) -> Environment:
    """Return the environment of an actor. Errors: ConfigError with the key at fault."""
    try:
        return make_environment(config)
    except EnvironmentUnusable as error:
        raise ConfigError(str(error), [error.problem]) from error


def make_environment(config: CustomEnvironment) -> Environment:
    """Return the environment. Errors: EnvironmentUnusable."""
    cls = _class_of(config)
    try:
        inspect.signature(cls).bind(**config.arguments)
    except TypeError as error:
        parameters = ", ".join(inspect.signature(cls).parameters) or "none"
        raise _unusable(
            "arguments", f"{config.function}: {error}", remedy=f"its arguments are: {parameters}"
        ) from error
    except ValueError:  # a class in C may have no signature
        pass
    try:
        made: Environment = cls(**config.arguments)
    except Exception as error:  # the class is the user's, and may raise anything
        reason = f"{config.function} cannot be made of its arguments: {type(error).__name__}: {error}"
        raise _unusable("arguments", reason, remedy="correct them, or the class") from error
    return made


def episode_bounds(
    config: EnvironmentConfig, *, max_new_tokens: int, context_tokens: int | None = None
) -> EpisodeBounds:
    """Return the bounds of an episode.

    `max_new_tokens`: most tokens of a completion; `context_tokens`: most with a prompt, None for no bound.
    """
    if isinstance(config, SingleTurnEnvironment):
        return EpisodeBounds(max_tokens=max_new_tokens)
    return EpisodeBounds(
        max_tokens=max_new_tokens,
        context_tokens=context_tokens,
        max_segments=config.most_conversations,
        turn_tokens=config.turn_tokens,
        max_turns=config.max_turns,
        seconds=config.seconds,
        end_seconds=END_SECONDS if isinstance(config, CustomEnvironment) else None,
    )


def _class_of(config: CustomEnvironment) -> type[Any]:
    """Return the class that the configuration names. Errors: EnvironmentUnusable."""
    try:
        loaded: Any = load_function(config.function)
    except FunctionMissing as error:
        raise _unusable("function", error.reason, remedy=error.remedy or CALLED_AS) from error
    except Exception as error:  # a user's module may raise anything
        reason = f"{config.function} cannot be imported: {type(error).__name__}: {error}"
        raise _unusable("function", reason, remedy="correct the module") from error
    if not inspect.isclass(loaded):
        reason = f"{config.function} is a {type(loaded).__name__}, and an environment is a class"
        raise _unusable("function", reason, remedy=CALLED_AS)
    run = getattr(loaded, "run", None)
    if not inspect.iscoroutinefunction(run):
        missing = "no `run`" if run is None else "a `run` that is no coroutine function (`async def`)"
        raise _unusable("function", f"{config.function} has {missing}", remedy=CALLED_AS)
    needs_no_self = isinstance(inspect.getattr_static(loaded, "run"), staticmethod | classmethod)
    try:
        inspect.signature(run).bind(*(["episode"] if needs_no_self else ["self", "episode"]))
    except TypeError as error:
        reason = f"{config.function}.run cannot be called with an episode: {error}"
        raise _unusable("function", reason, remedy=CALLED_AS) from error
    return loaded


def _unusable(key: str, reason: str, *, remedy: str) -> EnvironmentUnusable:
    return EnvironmentUnusable(Problem(key=f"{KEY}.{key}", reason=" ".join(reason.split()), remedy=remedy))
