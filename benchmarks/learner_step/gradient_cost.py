"""The cost of the gradient of one batch with the learner's packed rows, and with padded implementations."""

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from slipstream.config import RunConfig, parse_config
from slipstream.learner.policy.loading import load_policy
from slipstream.learner.policy.model import Policy
from slipstream.learner.policy.tiny import make_tiny_model
from slipstream.learner.training.step import TrainingStep
from slipstream.records import Group

from benchmarks.circle import GRPO
from benchmarks.cost import CLOCKS, Cost, alone, cost_of
from benchmarks.learner_step.lognormal import MEAN_TOKENS, PROMPT_TOKENS, lognormal_groups
from benchmarks.learner_step.padded import (
    Padded,
    Trl,
    by_length,
    flat_gradient,
    has_trl,
    in_batches,
    one_batch,
    plain_gradient,
    samples_of,
)

GROUP_SIZE, MICRO_BATCH = 8, 8
LONGEST = 2048
"""The context of the model, in tokens."""
OURS, SHARED = "Slipstream", "Slipstream, `share_prompts`"
PLAIN, SORTED = "plain, padded", "plain, padded, sorted by length"
TRL_CUT, TRL = "TRL, micro-batches cut to their own longest", "TRL as it is"
SHORT = {"mean": 4, "sigma": 0.2, "shortest": 3, "longest": 5, "prompt": 6}
"""Lengths as in the quickstart, in tokens."""
SHORT_ROW = 256
"""The rows of the quickstart, in tokens."""
TRL_PARTS = 4
"""The number of timed micro-batches of TRL; all have one shape, so the others take as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A method to compute the gradient of the batch; `times` such runs are the work of the whole batch."""

    gradient: Callable[[], torch.Tensor]
    positions: int
    """Tokens that the model computes for the whole batch."""
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The speed of a method."""

    seconds: Sequence[float]
    """Seconds for the whole batch, in each round."""
    positions: int
    distance: float
    """The distance of its gradient from the plain one, in units of the norm of that."""


def tiny_weights(directory: Path) -> Path:
    """Write a randomly initialised Qwen2 of a million parameters."""
    make_tiny_model(configured(row_tokens=LONGEST).model.tiny, directory, seed=0)
    return directory


def configured(*, row_tokens: int, share_prompts: bool = False) -> RunConfig:
    """Return a configuration of GRPO without a filter and without gradient clipping."""
    return parse_config(
        {
            "model": {"tiny": {"max_tokens": LONGEST}},
            "algorithm": GRPO,
            "rollout": {"group_size": GROUP_SIZE, "max_new_tokens": LONGEST},
            "learner": {
                "max_tokens_per_row": row_tokens,
                "share_prompts": share_prompts,
                "max_grad_norm": 1e9,
            },
        }
    )


def learner_gradient(policy: Policy, config: RunConfig, groups: Sequence[Group]) -> torch.Tensor:
    """Return the flat gradient of one training step, without the update of the weights."""
    gradients: list[torch.Tensor] = []

    def instead(change: Callable[[], None]) -> None:
        gradients.append(torch.cat([p.grad.flatten() for p in policy.model.parameters()]))

    TrainingStep(policy, config).train(groups, version=0, update=instead)
    (gradient,) = gradients
    return gradient


def tiny_policy(weights: Path) -> Policy:
    """Return the policy with these weights in float32 on the CPU."""
    return load_policy(weights, source=weights, device=torch.device("cpu"), dtype=torch.float32)


def ways(weights: Path, groups: Sequence[Group], *, row_tokens: int) -> dict[str, Way]:
    """Return every method to compute the gradient of the batch, the plain padded one first."""
    samples, policy = samples_of(groups), tiny_policy(weights)
    cut, ordered = in_batches(samples, MICRO_BATCH), in_batches(by_length(samples), MICRO_BATCH)

    def plainly(batches: Sequence[Padded]) -> Way:
        return Way(
            gradient=lambda: flat_gradient(
                policy.model, lambda: plain_gradient(policy.model, batches, sequences=len(samples))
            ),
            positions=sum(batch.positions for batch in batches),
        )

    ways = {PLAIN: plainly(cut), SORTED: plainly(ordered)}
    ways |= {
        name: packed(policy, groups, row_tokens=row_tokens, share=name == SHARED) for name in (OURS, SHARED)
    }
    return ways | (_trl_ways(weights, cut) if has_trl() else {})


def packed(policy: Policy, groups: Sequence[Group], *, row_tokens: int, share: bool) -> Way:
    """Return the learner's method, with or without `share_prompts`."""
    config = configured(row_tokens=row_tokens, share_prompts=share)
    prompts = sum(len(g.prompt_token_ids) * (1 if share else len(g.completions)) for g in groups)
    return Way(
        gradient=lambda: learner_gradient(policy, config, groups),
        positions=prompts + sum(group.tokens for group in groups),
    )


def _trl_ways(weights: Path, cut: Sequence[Padded]) -> dict[str, Way]:
    trl = Trl(weights, micro_batch=MICRO_BATCH, accumulation=len(cut), group_size=GROUP_SIZE)
    batch = one_batch(cut)

    def over(batches: Sequence[Padded], times: int = 1) -> Way:
        return Way(
            gradient=lambda: flat_gradient(trl.model, lambda: trl.gradient(batches)),
            positions=times * sum(batch.positions for batch in batches),
            times=times,
        )

    return {TRL_CUT: over(cut), TRL: over(batch[:TRL_PARTS], len(cut) // TRL_PARTS)}


def speeds(
    groups: int, *, rounds: int, threads: int, row_tokens: int, clock: str
) -> tuple[dict[str, Speed], int]:
    """Measure every method on lognormal completions; return the speeds and the number of trained tokens."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as directory:
        weights = tiny_weights(Path(directory))
        vocabulary = int(tiny_policy(weights).model.config.vocab_size)
        batch = lognormal_groups(groups, GROUP_SIZE, vocabulary=vocabulary)
        speeds = timed(ways(weights, batch, row_tokens=row_tokens), PLAIN, rounds=rounds, clock=clock)
    return speeds, sum(group.tokens for group in batch)


def short_answers(groups: int, *, rounds: int, threads: int, clock: str) -> tuple[dict[str, Speed], int]:
    """Measure the learner's two methods on short groups; return speeds and trained tokens."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as directory:
        weights = tiny_weights(Path(directory))
        policy = tiny_policy(weights)
    vocabulary = int(policy.model.config.vocab_size)
    batch = lognormal_groups(groups, GROUP_SIZE, vocabulary=vocabulary, **SHORT)
    ours = {
        name: packed(policy, batch, row_tokens=SHORT_ROW, share=name == SHARED) for name in (OURS, SHARED)
    }
    return timed(ours, OURS, rounds=rounds, clock=clock), sum(group.tokens for group in batch)


def timed(ways: Mapping[str, Way], unit: str, *, rounds: int, clock: str) -> dict[str, Speed]:
    """Measure every method in every round, in turns, after a first round that is not counted. Distances are
    those from the gradient of `unit`."""
    gradients = {name: way.gradient() for name, way in ways.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            began = CLOCKS[clock]()
            way.gradient()
            seconds[name].append((CLOCKS[clock]() - began) * way.times)
    right = gradients[unit]
    return {
        name: Speed(
            seconds=seconds[name],
            positions=way.positions,
            distance=float((gradients[name] - right).norm() / right.norm()) if way.times == 1 else math.nan,
        )
        for name, way in ways.items()
    }


def times_faster(speeds: Mapping[str, Speed], name: str, other: str) -> float:
    """Return the median over the rounds of the ratio within a round."""
    return median(b / a for a, b in zip(speeds[name].seconds, speeds[other].seconds, strict=True))


def growth(
    sizes: Sequence[int], *, rounds: int, threads: int, row_tokens: int, clock: str
) -> dict[int, Cost]:
    """Return medians for steps of at least these numbers of trained tokens, each size in its own process."""
    return {size: alone(step_cost, size, rounds, threads, row_tokens, clock) for size in sizes}


def step_cost(tokens: int, rounds: int, threads: int, row_tokens: int, clock: str) -> Cost:
    """Seconds for each trained token after a first step, and the peak memory of that first step: the
    allocator keeps what a step gives back, so that later ones seem to need less."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as directory:
        policy = tiny_policy(tiny_weights(Path(directory)))
    config = configured(row_tokens=row_tokens)
    batch = _groups_of(tokens, int(policy.model.config.vocab_size), longest=row_tokens - PROMPT_TOKENS)
    costs = [
        cost_of(lambda: learner_gradient(policy, config, batch), policy.device, clock)
        for _ in range(1 + rounds)
    ]
    trained = sum(group.tokens for group in batch)
    seconds = median(cost.seconds for cost in costs[1:])
    return Cost(seconds=seconds / trained, peak_bytes=costs[0].peak_bytes)


def _groups_of(tokens: int, vocabulary: int, *, longest: int) -> list[Group]:
    """The first groups of one stream that have so many tokens together; no answer fills more than a row."""
    several = 2 * math.ceil(tokens / (GROUP_SIZE * MEAN_TOKENS)) + 4
    groups, total = [], 0
    for group in lognormal_groups(several, GROUP_SIZE, vocabulary=vocabulary, longest=longest):
        if total < tokens:
            groups.append(group)
            total += group.tokens
    return groups
