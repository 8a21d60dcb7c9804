"""Can the user's own rewards be found, and be called as they will be?"""

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from slipstream.config import RunConfig
from slipstream.config.checks import Problem
from slipstream.config.rewards import CustomConfig
from slipstream.functions import load_function, named_function


def check_rewards(config: RunConfig) -> Iterator[Problem]:
    """Problems of the rewards of the kind `custom`; their modules are imported."""
    for position, reward in enumerate(config.rewards):
        if isinstance(reward, CustomConfig):
            yield from _custom(reward, f"rewards.{position}")


def _custom(reward: CustomConfig, key: str) -> Iterator[Problem]:
    where = f"{key}.{'function' if reward.function else 'entry_point'}"
    remedy = "name a function that the verifier can import, from where it runs or from what is installed"
    try:
        with _working_directory_importable():
            name = named_function(reward.function, entry_point=reward.entry_point)
            function = load_function(name)
    except Exception as error:  # the module is the user's, and may raise anything
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        yield Problem(key=where, reason=f"cannot be imported: {reason}", remedy=remedy)
        return
    refused = _refused(function, reward)
    if refused:
        called = f"function(prompt, {'answers' if reward.group else 'answer'}, **arguments)"
        yield Problem(key=where, reason=f"{name} {refused}", remedy=f"it is called as {called}")


def _refused(function: Callable[..., Any], reward: CustomConfig) -> str:
    """Why a function cannot be called as the verifier will, or nothing."""
    if inspect.iscoroutinefunction(function):
        return "is a coroutine function, and a reward is a plain one"
    try:
        inspect.signature(function).bind("prompt", "answer", **reward.arguments)
    except TypeError as error:
        given = ", ".join(["a prompt", "answers" if reward.group else "an answer", *sorted(reward.arguments)])
        return f"cannot be called with {given}: {error}"
    except ValueError:  # a function of C that does not say what it takes
        pass
    return ""


@contextmanager
def _working_directory_importable() -> Iterator[None]:
    """As it is in the verifier, which is started by `python -m`."""
    before = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path[:] = before
