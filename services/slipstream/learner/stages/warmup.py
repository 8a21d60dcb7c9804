"""Cold start: supervised training on demonstrations, before reinforcement learning.

    python -m slipstream.learner.stages.warmup --config FILE --output DIR

Stage 1 of the recipe of DeepSeek-R1, arXiv:2501.12948. Writes a Hugging Face directory, by one rename, and
prints its progress as JSON lines.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from slipstream import prompts, records
from slipstream.answers.arithmetic import InvalidExpression, check_countdown
from slipstream.config import ConfigError, RolloutConfig, RunConfig, WarmupConfig, data, load_config
from slipstream.config.sources import sources
from slipstream.learner.policy import loading, model, tiny
from slipstream.learner.stages.supervised import Fitting, Pair, fit, unsampled_answer
from slipstream.processes.lifetime.parent_death import die_with_parent
from slipstream.tokens import Tokens, load_tokens

REPORTS = 20
REPORT_SECONDS = 5.0
"""Longest time between two reports, plus the time of a step."""
TEST_PROMPTS = 200
GENERATION_CONFIG = "generation_config.json"


def warm_up(config: RunConfig, output: Path) -> float | None:
    """Make the model, train it, write it to `output`; return its sampled accuracy on held-out prompts.

    The accuracy is None if demonstrations differ from answers: only the rewards can find the answer within a
    chain of thought. It is None in an environment of several turns, too, which the cold start does not play.

    Errors: ValueError for data or a model that do not fit; OSError when `output` cannot be written.
    """
    settings, dtype = config.warmup or WarmupConfig(steps=0), getattr(torch, config.model.dtype)
    if output.exists() and any(output.iterdir()):
        raise FileExistsError(f"{output} exists and is not empty; remove it or name another directory")
    partial = output.with_name(f".partial-{output.name}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    start = config.model.path or partial / "start"
    if config.model.tiny is not None:
        tiny.make_tiny_model(config.model.tiny, start, seed=config.seed)
    _print_progress(phase=f"loading {start}")
    policy = loading.load_policy(
        start, source=start, device=loading.pick_device(config.learner.device), dtype=dtype
    )
    tokens = load_tokens(start, max_new_tokens=config.rollout.max_new_tokens)
    source = prompts.make_source(config.data, seed=config.seed)
    stops = stop_at_end_of_turn(policy, tokens)
    has_turns = any(each.environment.has_turns for each in sources(config))
    measured = not data.demonstrates(config.data) and not has_turns
    if config.model.path is not None and measured:
        before, _ = sampled_accuracy(policy, tokens, source, config.rollout, report=_report_measured)
        _print_progress(accuracy_before=before)
    fit_demonstrations(policy, tokens, source, settings, config=config)
    accuracy = None
    if measured:
        accuracy, _ = sampled_accuracy(policy, tokens, source, config.rollout, report=_report_measured)
    _print_progress(phase="writing the model")
    policy.save(partial, dtype=dtype)
    write_stops(partial, stops)
    if config.model.tiny is not None:
        shutil.rmtree(start)
    partial.rename(output)
    return accuracy


def fit_demonstrations(
    policy: model.Policy,
    tokens: Tokens,
    source: prompts.PromptSource,
    settings: WarmupConfig,
    *,
    config: RunConfig,
) -> None:
    """Train on the demonstrations of the source, end of sequence included, each once."""
    batch_size, rate = settings.batch_size_of(config.model), settings.learning_rate_of(config.model)
    if settings.steps:
        plan = f"{settings.steps} steps of {batch_size} demonstrations, learning rate {rate:g}"
        _print_progress(phase=f"{plan}, {config.model.dtype}")
    began, reported = time.monotonic(), 0.0

    def report(step: int, steps: int, loss: float) -> None:
        nonlocal reported
        now = time.monotonic()
        if step in (1, steps) or step % max(1, steps // REPORTS) == 0 or now - reported > REPORT_SECONDS:
            _print_progress(
                step=step, steps=steps, loss=loss, seconds_left=(now - began) / step * (steps - step)
            )
            reported = now

    fit(
        policy,
        _demonstrations(tokens, source, steps=settings.steps, batch_size=batch_size),
        Fitting(
            steps=settings.steps,
            learning_rate=rate,
            max_tokens_per_row=config.learner.max_tokens_per_row,
            label_smoothing=settings.label_smoothing,
        ),
        report=report,
    )


def _demonstrations(
    tokens: Tokens, source: prompts.PromptSource, *, steps: int, batch_size: int
) -> Iterator[list[Pair]]:
    """Yield a batch for each step."""
    for first in range(0, steps * batch_size, batch_size):
        yield [
            Pair(
                prompt_token_ids=tokens.encode(prompt),
                answer=unsampled_answer(tokens.encode_answer(text, prompt=prompt)),
            )
            for prompt, text in map(source.demonstration, range(first, first + batch_size))
        ]


@torch.no_grad()
def sampled_accuracy(
    policy: model.Policy,
    tokens: Tokens,
    source: prompts.PromptSource,
    rollout: RolloutConfig,
    *,
    report: Callable[[int, int], None] = lambda done, of: None,
) -> tuple[float, int]:
    """Return the share of right answers to held-out prompts, one sampled answer each, and their number."""
    right = 0
    count = min(TEST_PROMPTS, source.held_out_size or TEST_PROMPTS)
    for index in range(count):
        prompt = source.held_out(index)
        right += _is_right(prompt, _sample(policy, tokens, prompt, rollout).strip())
        report(index + 1, count)
    return right / count, count


def stop_at_end_of_turn(policy: model.Policy, tokens: Tokens) -> list[int]:
    """Let the model stop at the chat template's end of turn too; return all tokens that it stops at.

    The files of a base model may lack the end of a turn. The list is empty if nothing changes.
    """
    end = tokens.end_of_turn
    eos = policy.model.generation_config.eos_token_id
    stops = list(eos) if isinstance(eos, list) else [eos] if eos is not None else []
    if end is None or end in stops:
        return []
    ends = (*tokens.encode_answer(""), end)  # the end of an answer without messages stays a stop token
    stops += [number for number in ends if number not in stops]
    policy.model.generation_config.eos_token_id = stops
    return stops


def write_stops(directory: Path, stops: list[int]) -> None:
    """Write the stop tokens to generation_config.json, from which vLLM reads them."""
    if not stops:
        return
    file = directory / GENERATION_CONFIG
    settings = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    file.write_text(json.dumps({**settings, "eos_token_id": stops}, indent=2) + "\n", encoding="utf-8")


def _report_measured(done: int, of: int) -> None:
    _print_progress(phase="measuring the accuracy, prompt", done_of_phase=done, of_phase=of)


def _sample(policy: model.Policy, tokens: Tokens, prompt: records.Prompt, rollout: RolloutConfig) -> str:
    ids = tokens.encode(prompt)
    generated = policy.model.generate(
        torch.tensor([ids], device=policy.device),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long, device=policy.device),
        do_sample=True,
        temperature=rollout.temperature,
        top_k=0,
        max_new_tokens=rollout.max_new_tokens,
    )
    return tokens.decode(generated[0, len(ids) :].tolist())


def _is_right(prompt: records.Prompt, text: str) -> bool:
    if prompt.task != "countdown":
        return text == prompt.answer
    try:
        numbers = [int(number) for number in prompt.fields["numbers"].split()]
        return check_countdown(text, numbers, int(prompt.answer))
    except InvalidExpression:
        return False


def _print_progress(**values: object) -> None:
    print(json.dumps(values), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m slipstream.learner.stages.warmup")
    parser.add_argument("--config", type=Path, required=True, help="YAML file of the run")
    parser.add_argument("--output", type=Path, required=True, help="directory to make")
    parser.add_argument("--parent", type=int, help="process id whose death ends this process")
    arguments = parser.parse_args(argv)
    if arguments.parent is not None:
        die_with_parent(arguments.parent)
    loading.without_progress_bars()
    try:
        accuracy = warm_up(load_config(arguments.config), arguments.output)
    except (ConfigError, ValueError, OSError) as error:
        print(f"warmup: {error}", file=sys.stderr)
        return 1
    _print_progress(done=True, accuracy=accuracy)
    return 0


if __name__ == "__main__":
    sys.exit(main())
