"""Checks that the engine's context and key-value cache hold the longest sequence of a run."""

import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from slipstream import records, tokens
from slipstream.cli.checks.chat import ChatTemplate, read_chat_template
from slipstream.cli.checks.model import ModelFiles, parameters_of
from slipstream.cli.checks.prompts import looked_at, prompt_text, trained_on
from slipstream.config import Problem, RunConfig, architecture, engine_checks, rewards, stages
from slipstream.config.sources import sources
from slipstream.prompts import PromptSource, judging, make_source, verbalized
from slipstream.prompts.file import RowSource

GIB = 1024**3
MIB = 1024**2
BLOCK_TOKENS = 32
VALUE_BYTES = {"float32": 4, "bfloat16": 2}
WINDOW_SLACK = 2048
"""Tokens that vLLM caches in addition to a sliding window while it computes a prompt: at least one batch."""
UNSEEN = 2
"""Factor by which prompts of a generated task may exceed the longest prompt that was measured."""
SMI = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The longest sequence of the engine, in tokens."""

    prompt: int
    """Longest prompt, with the text that a judge or verbalized sampling adds to it."""
    total: int
    """Longest prompt with its completion, rounded up to whole blocks."""


def needed_context(config: RunConfig, model: ModelFiles | None) -> Need | None:
    """Return the longest sequence of a run; None if prompts or tokenizer cannot be read on this machine."""
    if any(isinstance(stage, stages.SampledStage) for stage in config.stages):
        return None  # such a stage may add the text of a judge to a prompt, which is not measured here
    if any(source.environment.own_prompts for source in sources(config)):
        return None
    length = _length(config, model)
    if length is None:
        return None
    try:
        source = make_source(config.data, seed=config.seed)
        longest = max((length(prompt) + more for prompt, more in _asked(config, source)), default=0)
    except (ValueError, OSError, ImportError):
        return None  # check_prompts reports the error
    prompt = longest if isinstance(source, RowSource) else UNSEEN * longest
    total = -(-(prompt + config.rollout.max_new_tokens) // BLOCK_TOKENS) * BLOCK_TOKENS
    return Need(prompt=prompt, total=total)


def longest_trained(config: RunConfig, model: ModelFiles | None) -> int | None:
    """Return the tokens of the longest measured training prompt, with the instruction of verbalized sampling.

    None if prompts or tokenizer cannot be read on this machine.
    """
    length = _length(config, model)
    if length is None:
        return None
    rollout = config.rollout
    try:
        prompts = trained_on(make_source(config.data, seed=config.seed))
        if rollout.sampling == "verbalized":
            prompts = (verbalized.ask(prompt, rollout.candidates) for prompt in prompts)
        return max(map(length, prompts), default=None)
    except (ValueError, OSError, ImportError):
        return None  # check_prompts reports the error


def with_context(config: RunConfig, model: ModelFiles | None) -> RunConfig:
    """Return the configuration with rollout.context_tokens set to the longest sequence, if that is known and
    the key is null."""
    need = needed_context(config, model) if config.rollout.context_tokens is None else None
    if need is None:
        return config
    rollout = config.rollout.model_copy(update={"context_tokens": need.total})
    return config.model_copy(update={"rollout": rollout})


def check_context(
    config: RunConfig, model: ModelFiles | None, *, gpus: Literal["error", "note"], measures: bool = True
) -> list[Problem]:
    """Return the problems of the engine's context and cache. The cache of a tiny model is not checked.

    `measures`: whether the run measures its prompts: `slipstream run` does, pods in a cluster do not.
    `gpus`: severity of problems of the cache; an error if the run starts on this machine.
    """
    if config.rollout.engine != "vllm":
        return []
    need = needed_context(config, model)
    context = _engine_tokens(config, model, need if measures else None)
    problems = (
        []
        if context is None
        else list(engine_checks.beyond_context(config, context, context_is_known=_is_known(config, model)))
    )
    if model is None or not model.config:
        return problems
    problems += _declared(config, need)
    shape = architecture.cache_shape(model.config)
    if (
        shape is not None
        and context is not None
        and engine_checks.cache_type(config) in engine_checks.CACHE_BYTES
    ):
        gpu = _gpu_mib()
        cache = _on_cpu(config, shape, context) if gpu is None else _on_gpu(config, shape, context, gpu)
        problems += [replace(problem, severity=gpus) for problem in cache]
    return problems


def context_lines(
    config: RunConfig, model: ModelFiles | None, *, measures: bool = True
) -> list[tuple[str, str]]:
    """Return the rows on the engine's context and cache for the table of derived numbers.

    `measures`: as in `check_context`.
    """
    if config.rollout.engine != "vllm" or model is None or not model.config:
        return []
    need = needed_context(config, model)
    context, shape = (
        _engine_tokens(config, model, need if measures else None),
        architecture.cache_shape(model.config),
    )
    if context is None:
        return []
    longest = "" if need is None else f"; the longest prompt is {need.prompt:,}"
    rows = [("engine context", f"{context:,} tokens of the model's {model.context or context:,}{longest}")]
    if shape is not None and engine_checks.cache_type(config) in engine_checks.CACHE_BYTES:
        size = _cache_bytes(config, shape, context)
        capacity = int(config.rollout.kv_cache_gib * GIB // size)
        rows.append(
            (
                "key-value cache",
                f"{size / MIB:,.1f} MiB a sequence; {capacity:,} of them fit the CPU engine's",
            )
        )
    return rows


def _engine_tokens(config: RunConfig, model: ModelFiles | None, need: Need | None) -> int | None:
    """Return the context of the engine. `need`: None if the prompts are not measured."""
    declared = config.rollout.context_tokens or (None if need is None else need.total)
    rollout = config.rollout.model_copy(update={"context_tokens": declared})
    around = _around(config, model.tokenizer) if model and model.tokenizer else 0
    limit = _model_context(config, model)
    return tokens.engine_context(config.model_copy(update={"rollout": rollout}), limit, around=around)


def _model_context(config: RunConfig, model: ModelFiles | None) -> int | None:
    if config.model.tiny is not None:
        return config.model.tiny.max_tokens
    return None if model is None else model.context


def _is_known(config: RunConfig, model: ModelFiles | None) -> bool:
    """Return whether the engine's context is certain; a model on another machine may have a shorter one."""
    if config.rollout.context_tokens is not None:
        return True
    another = any(isinstance(stage, stages.DistillationStage) for stage in config.stages)
    return _model_context(config, model) is not None and not another


def _around(config: RunConfig, tokenizer: Any) -> int:
    """Return the tokens of the longest text that the run adds to a prompt."""
    lengths = (
        len(tokenizer.encode(text, add_special_tokens=False).ids) for text in tokens.added_texts(config)
    )
    return max(lengths, default=0)


def _length(config: RunConfig, model: ModelFiles | None) -> Callable[[records.Prompt], int] | None:
    """Return a function that counts the tokens of a prompt; None if there is no tokenizer to read."""
    if config.model.tiny is not None:
        return lambda prompt: len(prompt_text(prompt))
    if model is None or model.tokenizer is None or config.model.path is None:
        return None
    tokenizer, template = model.tokenizer, read_chat_template(config.model.path)

    def length(prompt: records.Prompt) -> int:
        _require_template(prompt, template)
        return len(tokenizer.encode(prompt_text(prompt, template)).ids)

    return length


def _require_template(prompt: records.Prompt, template: ChatTemplate | None) -> None:
    """Errors: ValueError for messages without a chat template to render them."""
    if prompt.messages and template is None:
        raise ValueError(f"prompt {prompt.prompt_id} has messages, and there is no chat template to read")


def _asked(config: RunConfig, source: PromptSource) -> Iterable[tuple[records.Prompt, int]]:
    """Yield every prompt of the engine, and how many tokens of an answer are inserted into it.

    Prompts are those of the data, those of judges, which contain an answer, and those of verbalized sampling.
    """
    judges = [reward for reward in config.rewards if isinstance(reward, rewards.SelfJudgeConfig)]
    for prompt in looked_at(config, source):
        yield prompt, 0
        for judge in (judge for judge in judges if judge.applies_to(prompt.source)):
            yield judging.judge_question(judge.question, prompt, answer=""), config.rollout.max_new_tokens
        for section in (config.evaluation, config.rollout):
            if section.sampling == "verbalized":
                yield verbalized.ask(prompt, section.candidates), 0


def _declared(config: RunConfig, need: Need | None) -> Iterator[Problem]:
    limit = config.rollout.context_tokens
    if limit is None or need is None:
        return
    wanted = need.prompt + config.rollout.max_new_tokens
    if wanted > limit:
        yield Problem(
            key="rollout.context_tokens",
            reason=f"is {limit}, and the longest prompt ({need.prompt} tokens) with a completion of "
            f"{config.rollout.max_new_tokens} has {wanted}: such prompts would be skipped",
            remedy=f"raise it to {wanted}, or leave it out",
        )


def _cache_bytes(config: RunConfig, shape: architecture.CacheShape, context: int) -> int:
    blocks = -(-context // BLOCK_TOKENS) + 1  # vLLM reserves one block
    value_bytes = engine_checks.CACHE_BYTES[engine_checks.cache_type(config)]
    return shape.bytes_for(blocks * BLOCK_TOKENS, value_bytes=value_bytes, slack=WINDOW_SLACK)


def _on_cpu(config: RunConfig, shape: architecture.CacheShape, context: int) -> Iterator[Problem]:
    size, cache = _cache_bytes(config, shape, context), config.rollout.kv_cache_gib * GIB
    if size > cache:
        yield Problem(
            key="rollout.kv_cache_gib",
            reason=f"is {config.rollout.kv_cache_gib:g}, and the cache of one sequence of {context:,} tokens "
            f"takes {size / GIB:.2f} GiB in {engine_checks.cache_type(config)}: "
            "the CPU engine would not start",
            remedy=f"raise it to {size / GIB + 0.005:.2f} or more, or lower rollout.context_tokens",
        )


def _on_gpu(
    config: RunConfig, shape: architecture.CacheShape, context: int, gpu_mib: int
) -> Iterator[Problem]:
    share, ranks = config.rollout.gpu_memory_utilization, config.rollout.tensor_parallel
    parameters = parameters_of(config.model.path) if config.model.path is not None else 0
    weights = parameters * VALUE_BYTES[config.model.dtype] / ranks
    cache = _cache_bytes(config, shape, context) / ranks
    if weights + cache > share * gpu_mib * MIB:
        yield Problem(
            key="rollout.gpu_memory_utilization",
            reason=f"is {share:g} of {gpu_mib / 1024:.1f} GiB, and weights ({weights / GIB:.2f} GiB) with "
            f"the cache of one sequence of {context:,} tokens ({cache / GIB:.2f} GiB) take more",
            remedy="raise it or rollout.tensor_parallel, or lower rollout.context_tokens",
        )


def _gpu_mib() -> int | None:
    """Return the memory of the smallest GPU of this machine in MiB; None without a GPU."""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return None
    try:
        done = subprocess.run(SMI, capture_output=True, text=True, timeout=10, check=True)
        return min(int(line) for line in done.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
