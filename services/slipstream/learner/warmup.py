"""Cold start: supervised training on demonstrations, before there is a reward worth following.

    python -m slipstream.learner.warmup --config FILE --output DIR

Stage 1 of the recipe of DeepSeek-R1, arXiv:2501.12948. Writes a Hugging Face directory, by one rename, and
prints its progress as JSON lines.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from slipstream.config import ConfigError, RunConfig, ScheduleConfig, WarmupConfig, load_config
from slipstream.learner.batch import Row, TrainingSequence, make_row, pack, prompt_tokens
from slipstream.learner.model import Policy, load_policy, pick_device, without_progress_bars
from slipstream.learner.schedule import learning_rate
from slipstream.learner.tiny import make_tiny_model
from slipstream.rpc.pod import die_with_parent
from slipstream.tasks import InvalidExpression, PromptSource, check_countdown, make_source
from slipstream.tokens import Tokens, load_tokens
from slipstream.types import Completion, FinishReason, Prompt, VersionSpan

REPORTS = 20
MAX_GRAD_NORM = 1.0
WARMUP_SHARE = 0.05
TEST_PROMPTS = 200


def warm_up(config: RunConfig, output: Path) -> float:
    """Make the model, train it, write it to `output`; returns its sampled accuracy on held-out prompts.

    Errors: ValueError for data or a model that do not fit; OSError when `output` cannot be written.
    """
    settings = config.warmup or WarmupConfig(steps=0)
    if output.exists() and any(output.iterdir()):
        raise FileExistsError(f"{output} exists and is not empty; remove it or name another directory")
    partial = output.with_name(f".partial-{output.name}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    start = config.model.path or partial / "start"
    if config.model.tiny is not None:
        make_tiny_model(config.model.tiny, start, seed=config.seed)
    policy = load_policy(start, source=start, device=pick_device(config.learner.device), dtype=torch.float32)
    tokens = load_tokens(start, max_new_tokens=config.rollout.max_new_tokens)
    source = make_source(config.data, seed=config.seed)
    fit(policy, tokens, source, settings, max_tokens_per_row=config.learner.max_tokens_per_row)
    accuracy = sampled_accuracy(policy, tokens, source, config)
    policy.save(partial)
    if config.model.tiny is not None:
        shutil.rmtree(start)
    partial.rename(output)
    return accuracy


def fit(
    policy: Policy, tokens: Tokens, source: PromptSource, settings: WarmupConfig, *, max_tokens_per_row: int
) -> None:
    """Minimise the negative log-likelihood of the demonstrations, end of sequence included.

    Labels are smoothed by sampling: a share of the targets is replaced by a token drawn from the whole
    vocabulary, which in expectation is the loss of Rethinking the Inception Architecture, arXiv:1512.00567.
    """
    smoothing = _Smoothing(share=settings.label_smoothing, vocabulary=policy.model.config.vocab_size)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95))
    schedule = ScheduleConfig(kind="cosine", warmup_steps=max(1, int(WARMUP_SHARE * settings.steps)))
    for step in range(1, settings.steps + 1):
        rate = learning_rate(step, peak=settings.learning_rate, steps=settings.steps, schedule=schedule)
        for group in optimizer.param_groups:
            group["lr"] = rate
        first = (step - 1) * settings.batch_size
        pairs = [source.demonstration(first + index) for index in range(settings.batch_size)]
        rows = _rows(policy, tokens, pairs, max_tokens=max_tokens_per_row)
        loss = _backward(policy, ((smoothing.apply(row), count) for row, count in rows))
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % max(1, settings.steps // REPORTS) == 0 or step == settings.steps:
            _say(step=step, steps=settings.steps, loss=loss)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Smoothing:
    """Replaces a share of the targets, with draws that depend on nothing but their order."""

    share: float
    vocabulary: int
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def apply(self, row: Row) -> Row:
        shape = row.targets_T.shape
        replaced_T = torch.rand(shape, generator=self.generator) < self.share
        random_T = torch.randint(self.vocabulary, shape, generator=self.generator)
        device = row.targets_T.device
        return replace(row, targets_T=row.targets_T.where(~replaced_T.to(device), random_T.to(device)))


@torch.no_grad()
def sampled_accuracy(policy: Policy, tokens: Tokens, source: PromptSource, config: RunConfig) -> float:
    """Share of right answers to held-out prompts, one sampled answer each."""
    right = 0
    count = min(TEST_PROMPTS, source.held_out_size or TEST_PROMPTS)
    for index in range(count):
        prompt = source.held_out(index)
        right += _is_right(prompt, _sample(policy, tokens, prompt, config).strip())
    return right / count


def _rows(
    policy: Policy, tokens: Tokens, pairs: Sequence[tuple[Prompt, str]], *, max_tokens: int
) -> Iterator[tuple[Row, int]]:
    """Packed rows, each with the number of target tokens of the whole batch."""
    sequences = [_sequence(tokens, index, prompt, text) for index, (prompt, text) in enumerate(pairs)]
    totals = prompt_tokens(sequences)
    for packed in pack(sequences, max_tokens=max_tokens):
        yield make_row(packed, totals, policy.device), sum(totals.values())


def _sequence(tokens: Tokens, index: int, prompt: Prompt, text: str) -> TrainingSequence:
    target = tokens.encode_answer(text)
    completion = Completion(
        token_ids=target,
        logprobs=(0.0,) * len(target),
        mask=(1,) * len(target),
        spans=(VersionSpan(version=0, start=0, end=len(target)),),
        finish_reason=FinishReason.STOP,
    )
    return TrainingSequence(
        prompt_token_ids=tokens.encode(prompt), completion=completion, place=index, group=index
    )


def _backward(policy: Policy, rows: Iterator[tuple[Row, int]]) -> float:
    total = 0.0
    for row, count in rows:
        logprobs_T = policy.selected(
            row.tokens_R, row.positions_R, row.predictors_T, row.targets_T, temperature=1.0, chunk=1024
        ).logprobs_T
        loss = -logprobs_T.sum() / count
        loss.backward()
        total += float(loss.detach())
    return total


def _sample(policy: Policy, tokens: Tokens, prompt: Prompt, config: RunConfig) -> str:
    ids = tokens.encode(prompt)
    generated = policy.model.generate(
        torch.tensor([ids], device=policy.device),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long, device=policy.device),
        do_sample=True,
        temperature=config.rollout.temperature,
        top_k=0,
        max_new_tokens=config.rollout.max_new_tokens,
    )
    return tokens.decode(generated[0, len(ids) :].tolist())


def _is_right(prompt: Prompt, text: str) -> bool:
    if prompt.task != "countdown":
        return text == prompt.answer
    try:
        numbers = [int(number) for number in prompt.fields["numbers"].split()]
        return check_countdown(text, numbers, int(prompt.answer))
    except InvalidExpression:
        return False


def _say(**values: object) -> None:
    print(json.dumps(values), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m slipstream.learner.warmup")
    parser.add_argument("--config", type=Path, required=True, help="YAML file of the run")
    parser.add_argument("--output", type=Path, required=True, help="directory to make")
    parser.add_argument("--parent", type=int, help="process id whose death ends this process")
    arguments = parser.parse_args(argv)
    if arguments.parent is not None:
        die_with_parent(arguments.parent)
    without_progress_bars()
    try:
        accuracy = warm_up(load_config(arguments.config), arguments.output)
    except (ConfigError, ValueError, OSError) as error:
        print(f"warmup: {error}", file=sys.stderr)
        return 1
    _say(done=True, accuracy=accuracy)
    return 0


if __name__ == "__main__":
    sys.exit(main())
