"""How long are the sequences of a run, and does the engine's key-value cache hold one?"""

import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from slipstream.cli.checks.chat import ChatTemplate, read_chat_template
from slipstream.cli.checks.model import ModelFiles, parameters_of
from slipstream.cli.checks.prompts import looked_at, prompt_text, trained_on
from slipstream.config import RunConfig
from slipstream.config.architecture import CacheShape, cache_shape
from slipstream.config.checks import Problem
from slipstream.config.engine_checks import CACHE_BYTES, beyond_context, cache_type
from slipstream.config.rewards import SelfJudgeConfig
from slipstream.config.stages import DistillationStage, SampledStage
from slipstream.prompts import PromptSource, make_source
from slipstream.prompts.file import RowSource
from slipstream.prompts.judge_question import judge_question
from slipstream.prompts.verbalized import ask
from slipstream.records import Prompt
from slipstream.tokens import added_texts, engine_context

GIB = 1024**3
MIB = 1024**2
BLOCK_TOKENS = 32
VALUE_BYTES = {"float32": 4, "bfloat16": 2}
WINDOW_SLACK = 2048
"""Tokens that vLLM keeps beyond a sliding window while it computes a prompt: at least one batch of it."""
UNSEEN = 2
"""How much longer than the longest prompt that was looked at another one of an endless source may be."""
SMI = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The longest sequence that the engine has to take, in tokens."""

    prompt: int
    """Longest prompt, with what a judge or verbalized sampling puts around it."""
    total: int
    """With its completion; at least one block."""


def needed_context(config: RunConfig, model: ModelFiles | None) -> Need | None:
    """What the prompts of a run need; None where they, or the model's tokenizer, cannot be read here."""
    if any(isinstance(stage, SampledStage) for stage in config.stages):
        return None  # its judges ask longer questions than the data has
    length = _length(config, model)
    if length is None:
        return None
    try:
        source = make_source(config.data, seed=config.seed)
        longest = max((length(prompt) + more for prompt, more in _asked(config, source)), default=0)
    except (ValueError, OSError, ImportError):
        return None  # check_prompts says so
    prompt = longest if isinstance(source, RowSource) else UNSEEN * longest
    total = -(-(prompt + config.rollout.max_new_tokens) // BLOCK_TOKENS) * BLOCK_TOKENS
    return Need(prompt=prompt, total=total)


def longest_trained(config: RunConfig, model: ModelFiles | None) -> int | None:
    """Tokens of the longest training prompt that was looked at, as the policy is asked; None where prompts,
    or the model's tokenizer, cannot be read here."""
    length = _length(config, model)
    if length is None:
        return None
    rollout = config.rollout
    try:
        prompts = trained_on(make_source(config.data, seed=config.seed))
        if rollout.sampling == "verbalized":
            prompts = (ask(prompt, rollout.candidates) for prompt in prompts)
        return max(map(length, prompts), default=None)
    except (ValueError, OSError, ImportError):
        return None  # check_prompts says so


def with_context(config: RunConfig, model: ModelFiles | None) -> RunConfig:
    """The configuration with rollout.context_tokens as the run needs it, unless it is given or unknown."""
    need = needed_context(config, model) if config.rollout.context_tokens is None else None
    if need is None:
        return config
    rollout = config.rollout.model_copy(update={"context_tokens": need.total})
    return config.model_copy(update={"rollout": rollout})


def check_context(
    config: RunConfig, model: ModelFiles | None, *, gpus: Literal["error", "note"], measures: bool = True
) -> list[Problem]:
    """Problems of the engine's context and cache. Nothing about the cache of a tiny model, which is small.

    `measures`: whether the run measures its prompts, as `slipstream run` does and pods in a cluster do not.
    """
    if config.rollout.engine != "vllm":
        return []
    need = needed_context(config, model)
    context = _engine_tokens(config, model, need if measures else None)
    problems = (
        [] if context is None else list(beyond_context(config, context, known=_is_known(config, model)))
    )
    if model is None or not model.config:
        return problems
    problems += _declared(config, need)
    shape = cache_shape(model.config)
    if shape is not None and context is not None and cache_type(config) in CACHE_BYTES:
        gpu = _gpu_mib()
        found = _on_cpu(config, shape, context) if gpu is None else _on_gpu(config, shape, context, gpu)
        problems += [_with(problem, gpus) for problem in found]
    return problems


def context_lines(
    config: RunConfig, model: ModelFiles | None, *, measures: bool = True
) -> list[tuple[str, str]]:
    """The engine's context and its cache, for the table of derived numbers; `measures` as above."""
    if config.rollout.engine != "vllm" or model is None or not model.config:
        return []
    need = needed_context(config, model)
    context, shape = _engine_tokens(config, model, need if measures else None), cache_shape(model.config)
    if context is None:
        return []
    longest = "" if need is None else f"; the longest prompt is {need.prompt:,}"
    rows = [("engine context", f"{context:,} tokens of the model's {model.context or context:,}{longest}")]
    if shape is not None and cache_type(config) in CACHE_BYTES:
        size = _cache_bytes(config, shape, context)
        held = int(config.rollout.kv_cache_gib * GIB // size)
        rows.append(
            ("key-value cache", f"{size / MIB:,.1f} MiB a sequence; {held:,} of them fit the CPU engine's")
        )
    return rows


def _engine_tokens(config: RunConfig, model: ModelFiles | None, need: Need | None) -> int | None:
    """The context that an engine takes; `need` is None where nobody measures the prompts."""
    declared = config.rollout.context_tokens or (None if need is None else need.total)
    rollout = config.rollout.model_copy(update={"context_tokens": declared})
    around = _around(config, model.tokenizer) if model and model.tokenizer else 0
    limit = _model_context(config, model)
    return engine_context(config.model_copy(update={"rollout": rollout}), limit, around=around)


def _model_context(config: RunConfig, model: ModelFiles | None) -> int | None:
    if config.model.tiny is not None:
        return config.model.tiny.max_tokens
    return None if model is None else model.context


def _is_known(config: RunConfig, model: ModelFiles | None) -> bool:
    """Whether the engine's context is certain: a model that is not seen here may have a shorter one."""
    if config.rollout.context_tokens is not None:
        return True
    another = any(isinstance(stage, DistillationStage) for stage in config.stages)
    return _model_context(config, model) is not None and not another


def _around(config: RunConfig, tokenizer: Any) -> int:
    """Tokens of the longest text that the run puts around a prompt."""
    lengths = (len(tokenizer.encode(text, add_special_tokens=False).ids) for text in added_texts(config))
    return max(lengths, default=0)


def _length(config: RunConfig, model: ModelFiles | None) -> Callable[[Prompt], int] | None:
    """How many tokens a prompt has."""
    if config.model.tiny is not None:
        return lambda prompt: len(prompt_text(prompt))
    if model is None or model.tokenizer is None or config.model.path is None:
        return None
    tokenizer, template = model.tokenizer, read_chat_template(config.model.path)

    def length(prompt: Prompt) -> int:
        _require_template(prompt, template)
        return len(tokenizer.encode(prompt_text(prompt, template)).ids)

    return length


def _require_template(prompt: Prompt, template: ChatTemplate | None) -> None:
    """Errors: ValueError for messages whose text is not known here."""
    if prompt.messages and template is None:
        raise ValueError(f"prompt {prompt.prompt_id} has messages, and there is no chat template to read")


def _asked(config: RunConfig, source: PromptSource) -> Iterable[tuple[Prompt, int]]:
    """All that the engine is asked, and the tokens that come into it: prompts, the questions of judges about
    their answers, verbalized prompts."""
    judges = [reward for reward in config.rewards if isinstance(reward, SelfJudgeConfig)]
    for prompt in looked_at(config, source):
        yield prompt, 0
        for judge in judges:
            yield judge_question(judge.question, prompt, answer=""), config.rollout.max_new_tokens
        for section in (config.evaluation, config.rollout):
            if section.sampling == "verbalized":
                yield ask(prompt, section.candidates), 0


def _declared(config: RunConfig, need: Need | None) -> Iterator[Problem]:
    given = config.rollout.context_tokens
    if given is None or need is None:
        return
    wanted = need.prompt + config.rollout.max_new_tokens
    if wanted > given:
        yield Problem(
            key="rollout.context_tokens",
            reason=f"is {given}, and the longest prompt ({need.prompt} tokens) with a completion of "
            f"{config.rollout.max_new_tokens} has {wanted}: such prompts would be skipped",
            remedy=f"raise it to {wanted}, or leave it out",
        )


def _cache_bytes(config: RunConfig, shape: CacheShape, context: int) -> int:
    blocks = -(-context // BLOCK_TOKENS) + 1  # vLLM keeps one block for itself
    value_bytes = CACHE_BYTES[cache_type(config)]
    return shape.bytes_for(blocks * BLOCK_TOKENS, value_bytes=value_bytes, slack=WINDOW_SLACK)


def _on_cpu(config: RunConfig, shape: CacheShape, context: int) -> Iterator[Problem]:
    size, cache = _cache_bytes(config, shape, context), config.rollout.kv_cache_gib * GIB
    if size > cache:
        yield Problem(
            key="rollout.kv_cache_gib",
            reason=f"is {config.rollout.kv_cache_gib:g}, and the cache of one sequence of {context:,} tokens "
            f"takes {size / GIB:.2f} GiB in {cache_type(config)}: the CPU engine would not start",
            remedy=f"raise it to {size / GIB + 0.005:.2f} or more, or lower rollout.context_tokens",
        )


def _on_gpu(config: RunConfig, shape: CacheShape, context: int, gpu_mib: int) -> Iterator[Problem]:
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
    """Memory of the smallest GPU of this machine; None without one."""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return None
    try:
        done = subprocess.run(SMI, capture_output=True, text=True, timeout=10, check=True)
        return min(int(line) for line in done.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _with(problem: Problem, severity: Literal["error", "note"]) -> Problem:
    return Problem(key=problem.key, reason=problem.reason, remedy=problem.remedy, severity=severity)
