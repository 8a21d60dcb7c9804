"""Can the teacher read what the policy samples: is it there, has it the policy's vocabulary and a context?"""

import json
from collections.abc import Iterator
from typing import Any

from slipstream.cli.checks.model import ModelFiles
from slipstream.config import RunConfig
from slipstream.config.architecture import context_of
from slipstream.config.checks import Problem
from slipstream.config.place import place
from slipstream.rpc.vocabulary import vocabulary_of

KEY = "teacher.path"


def check_teacher(config: RunConfig, model: ModelFiles | None) -> Iterator[Problem]:
    """Problems of the teacher of a run that distills; `model` is None for a tiny one, still to be made."""
    path = config.teacher.path
    if path is None or config.algorithm.resolved_distillation() is None:
        return
    if not (path / "config.json").is_file():
        reason = f"{place(path)} has no config.json"
        yield Problem(key=KEY, reason=reason, remedy="name a Hugging Face model directory")
        return
    try:
        vocabulary = vocabulary_of(path)
    except ValueError as error:
        reason, _, remedy = str(error).rpartition("; ")
        yield Problem(key=KEY, reason=reason, remedy=remedy)
        return
    yield from _too_short(config)
    if model is not None and config.model.path is not None and not model.problems:
        try:
            own = vocabulary_of(config.model.path)
        except ValueError:
            return  # the model's own checks say it
        if own != vocabulary:
            yield Problem(
                key=KEY,
                reason=f"{place(path)} has another vocabulary than {place(config.model.path)}: the same "
                "token ids stand for other tokens",
                remedy="name a teacher with the policy's tokenizer",
            )


def _too_short(config: RunConfig) -> Iterator[Problem]:
    assert config.teacher.path is not None, "looked at before"
    try:
        settings: Any = json.loads((config.teacher.path / "config.json").read_text(encoding="utf-8"))
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        yield Problem(key=KEY, reason="config.json cannot be read", remedy="copy the model again")
        return
    context, budget = context_of(settings), config.rollout.max_new_tokens
    if context is not None and context <= budget:
        yield Problem(
            key=KEY,
            reason=f"reads {context} tokens, and rollout.max_new_tokens is {budget}: no room for a prompt",
            remedy="lower rollout.max_new_tokens, or name a teacher with a longer context",
        )
