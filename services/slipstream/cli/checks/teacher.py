"""Checks of the teacher: its weights exist, and vocabulary and context fit the policy's completions."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slipstream.cli.checks.context import longest_trained
from slipstream.cli.checks.model import ModelFiles
from slipstream.config import Invalid, Problem, RunConfig, architecture, distillation_checks, located
from slipstream.hub.safetensors_header import PREFIX_BYTES
from slipstream.rpc.vocabulary import vocabulary_of, vocabulary_of_tiny

KEY = "teacher.path"
INDEX = "model.safetensors.index.json"


def check_teacher(config: RunConfig, model: ModelFiles | None) -> Iterator[Problem]:
    """Yield the problems of the teacher of a run that distills. `model`: None for a tiny policy."""
    path = config.teacher.path
    if path is None or config.algorithm.resolved_distillation() is None:
        return
    if not (path / "config.json").is_file():
        reason = f"{located(path)} has no config.json"
        yield Problem(key=KEY, reason=reason, remedy="name a Hugging Face model directory")
        return
    yield from _weights(path)
    try:
        vocabulary = vocabulary_of(path)
    except Invalid as error:
        yield Problem(key=KEY, reason=error.reason, remedy=error.remedy)
        return
    settings = _settings(path)
    if settings is None:
        yield Problem(key=KEY, reason="config.json cannot be read", remedy="copy the model again")
        return
    yield from _too_short(config, model, settings)
    yield from _too_few(config, model, settings)
    if config.model.tiny is not None:
        yield from _unlike(vocabulary, vocabulary_of_tiny(), path, "model.tiny")
    elif model is not None and config.model.path is not None and not model.problems:
        try:
            own = vocabulary_of(config.model.path)
        except Invalid:
            return  # read_model reports the problem
        yield from _unlike(vocabulary, own, path, located(config.model.path))


def _settings(path: Path) -> Mapping[str, Any] | None:
    try:
        settings: Any = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except ValueError:
        return None
    return architecture.text_settings(settings) if isinstance(settings, dict) else None


def _weights(path: Path) -> Iterator[Problem]:
    """Check that all files of weights exist and are not empty."""
    try:
        index: Any = json.loads((path / INDEX).read_text(encoding="utf-8"))
        named = set(index["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        named = set()
    lacking = sorted(name for name in named if not (path / name).is_file())
    weights = sorted(path.glob("*.safetensors")) or sorted(path.glob("pytorch_model*.bin"))
    if lacking:
        reason = f"{located(path)} lacks {lacking[0]}, which {INDEX} names"
        yield Problem(key=KEY, reason=reason, remedy="copy the model again")
    elif not weights:
        reason = f"{located(path)} has no .safetensors file"
        remedy = "save the weights with save_pretrained, or name the directory that has them"
        yield Problem(key=KEY, reason=reason, remedy=remedy)
    for file in weights:
        if file.stat().st_size < PREFIX_BYTES:
            yield Problem(key=KEY, reason=f"{file} is empty or cut off", remedy="copy the model again")


def _unlike(vocabulary: str, own: str, path: Path, policy: str) -> Iterator[Problem]:
    if own != vocabulary:
        yield Problem(
            key=KEY,
            reason=f"{located(path)} has another vocabulary than {policy}: the same token ids stand for "
            "other tokens",
            remedy="name a teacher with the policy's tokenizer",
        )


def _too_few(config: RunConfig, model: ModelFiles | None, settings: Mapping[str, Any]) -> Iterator[Problem]:
    """Check that the teacher's vocabulary has `top_k` tokens, unless the check of the policy already
    fails."""
    distillation, tokens, tiny = (
        config.algorithm.resolved_distillation(),
        settings.get("vocab_size"),
        config.model.tiny,
    )
    top_k = 0 if distillation is None else distillation.resolved_top_k
    policy = tiny.vocabulary_size if tiny else model.config.get("vocab_size") if model else None
    named = isinstance(policy, int) and top_k > policy
    if isinstance(tokens, int) and top_k > tokens and not named:
        yield distillation_checks.beyond_teaching(top_k, tokens, whose="teacher")


def _too_short(config: RunConfig, model: ModelFiles | None, settings: Mapping[str, Any]) -> Iterator[Problem]:
    """Check the teacher's context; sequences over learner.max_tokens_per_row are not sent to it."""
    context, budget, row = (
        architecture.context_of(settings),
        config.rollout.max_new_tokens,
        config.learner.max_tokens_per_row,
    )
    if context is None or context >= row:
        return
    if context <= budget:
        yield Problem(
            key=KEY,
            reason=f"reads {context} tokens, and rollout.max_new_tokens is {budget}: no room for a prompt",
            remedy="lower rollout.max_new_tokens, or name a teacher with a longer context",
        )
        return
    longest = longest_trained(config, model)
    if longest is not None and longest + budget > context:
        lower = (
            f"lower rollout.max_new_tokens to {context - longest}"
            if longest < context
            else "leave that prompt out"
        )
        yield Problem(
            key=KEY,
            reason=f"reads {context} tokens, and the longest prompt ({longest}) with a completion of "
            f"{budget} has {longest + budget}",
            remedy=f"{lower}, or name a teacher with a longer context",
        )
