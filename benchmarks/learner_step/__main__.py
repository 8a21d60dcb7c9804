"""The cost of a step of the learner, compared with TRL and with plain implementations.

    python -m benchmarks.learner_step [--parts gradient prompts head growth] [--rounds N] [--clock cpu]
                                      [--device cpu]

gradient  One batch of 64 groups x 8 completions, lognormal lengths (sigma 1, mean 96 tokens) behind prompts
          of 16, a Qwen2 of a million parameters on the CPU: trained tokens a second of the learner's whole
          step but for the change of the weights (packed rows, with and without shared prompts), of the loss
          and backward pass of TRL's GRPOTrainer where TRL is installed, and of a plain padded implementation.
          Micro-batches have 8 completions, TRL's default. TRL pads each of them to the longest completion of
          the whole batch; the bound is set against the kinder case, in which each is cut to its own longest.
          Neither sorts by length; the plain one is measured sorted too. All the gradients must agree.
prompts   64 groups x 8 completions of 3 to 5 tokens behind prompts of 6, as in the quickstart, with
          `share_prompts` and without.
head      Logprobs, entropies and their backward pass at a large vocabulary, with all logits in memory and in
          chunks, every variant in a process of its own.
growth    Time for each token and peak memory of steps of 1 to 64 thousand tokens in full rows of 512, every
          size in a process of its own.

Ratios come from runs of one call that follow each other.
"""

import argparse
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from slipstream.learner.batches.row_sharding import ENOUGH_TOKENS
from slipstream.learner.policy.loading import without_progress_bars

from benchmarks.cost import CLOCKS
from benchmarks.learner_step.gradient_cost import PLAIN, growth, short_answers, speeds
from benchmarks.learner_step.head_cost import VARIANTS, Shape, compare
from benchmarks.learner_step.report import (
    growth_ratios,
    growth_table,
    head_ratios,
    head_table,
    prompts_ratios,
    speed_ratios,
    speed_table,
)
from benchmarks.ratio import print_ratio

PARTS = ("gradient", "prompts", "head", "growth")
SIZES = (1_000, 4_000, 16_000, 64_000)
SHORT_GROUPS = 64
FULL = 4_000
"""The least number of tokens of a step with full rows."""


def _timing(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in ("rounds", "threads", "clock")}


def _gradient(arguments: argparse.Namespace) -> tuple[str, dict[str, float]]:
    speeds_by_way, tokens = speeds(arguments.groups, row_tokens=arguments.row_tokens, **_timing(arguments))
    head = f"{arguments.groups} groups, {tokens:,} trained tokens, rows of {arguments.row_tokens:,}."
    return f"{head}\n\n{speed_table(speeds_by_way, tokens)}", speed_ratios(speeds_by_way, PLAIN)


def _prompts(arguments: argparse.Namespace) -> tuple[str, dict[str, float]]:
    speeds_by_way, tokens = short_answers(SHORT_GROUPS, **_timing(arguments))
    head = f"{SHORT_GROUPS} groups, {tokens:,} trained tokens."
    return f"{head}\n\n{speed_table(speeds_by_way, tokens)}", prompts_ratios(speeds_by_way)


def _head(arguments: argparse.Namespace) -> tuple[str, dict[str, float]]:
    shape = Shape(tokens=arguments.head_tokens, hidden=arguments.head_width, vocabulary=arguments.vocabulary)
    device = torch.device(arguments.device)
    costs = compare(shape, variants=arguments.variants, device=device, **_timing(arguments))
    return head_table(costs, shape), head_ratios(costs)


def _growth(arguments: argparse.Namespace) -> tuple[str, dict[str, float]]:
    costs = growth(arguments.sizes, row_tokens=ENOUGH_TOKENS, **_timing(arguments))
    return growth_table(costs, FULL), growth_ratios(costs, FULL)


TABLES = {"gradient": _gradient, "prompts": _prompts, "head": _head, "growth": _growth}


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="what seconds are of")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of torch")
    parser.add_argument("--groups", type=int, default=64, help="gradient: groups of the batch")
    parser.add_argument("--row-tokens", type=int, default=2048, help="gradient: tokens of a row")
    parser.add_argument("--head-tokens", type=int, default=Shape().tokens, help="head: trained tokens")
    parser.add_argument("--head-width", type=int, default=Shape().hidden, help="head: hidden size")
    parser.add_argument("--vocabulary", type=int, default=Shape().vocabulary, help="head: its tokens")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="head: where it runs")
    parser.add_argument(
        "--variants", type=int, default=len(VARIANTS), help="head: the first so many, 2 or more"
    )
    parser.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        default=SIZES,
        help=f"growth: tokens; {FULL} and a larger one, or more",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the parts, and print their tables and ratios."""
    arguments = _arguments(argv)
    warnings.filterwarnings("ignore", module="trl")
    without_progress_bars()
    for part in arguments.parts:
        table, ratios = TABLES[part](arguments)
        print(f"### {part}\n\n{table}\n")
        for name, ratio in ratios.items():
            print_ratio(name, ratio)
        print(flush=True)


if __name__ == "__main__":
    main()
