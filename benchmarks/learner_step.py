"""What a step of the learner costs, side by side with TRL and with the plain ways of doing the same.

    python benchmarks/learner_step.py [--parts gradient head growth] [--rounds N] [--device cpu] [--docs]

gradient  One batch of 64 groups x 8 completions, lognormal lengths (sigma 1, mean 96 tokens) behind prompts
          of 16, a Qwen2 of a million parameters on the CPU: trained tokens a second of the learner's whole
          step but for the change of the weights (packed rows, with and without shared prompts), of the loss
          and backward pass of TRL's GRPOTrainer where TRL is installed, and of a plain padded implementation.
          Micro-batches have 8 completions, TRL's default. TRL pads each of them to the longest completion of
          the whole batch; the limit is set against the kinder case, in which each is cut to its own longest.
          Neither sorts by length; the plain one is measured sorted too. All the gradients must agree.
head      Logprobs, entropies and their backward pass at a large vocabulary, with all logits in memory and in
          chunks, every variant in a process of its own.
growth    Time for each token and peak memory of steps of 1 to 64 thousand tokens in full rows of 512, every
          size in a process of its own.

Ratios come from runs of one call that follow each other. Exits with 1 when a limit does not hold.
"""

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from gradient_cost import PLAIN, growth, speeds
from head_cost import Shape, compare
from learner_step_report import (
    Limit,
    growth_limits,
    growth_table,
    head_limits,
    head_table,
    speed_limits,
    speed_table,
    with_report,
)
from slipstream.learner.batches.dealing import ENOUGH_TOKENS
from slipstream.learner.policy.loading import without_progress_bars

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs" / "benchmarks.md"
PARTS = ("gradient", "head", "growth")
SIZES = (1_000, 4_000, 16_000, 64_000)
FULL = 4_000
"""Tokens from which on the rows of a step are full."""


def _gradient(arguments: argparse.Namespace) -> tuple[str, list[Limit]]:
    found, tokens = speeds(
        arguments.groups, rounds=arguments.rounds, threads=arguments.threads, row_tokens=arguments.row_tokens
    )
    head = f"{arguments.groups} groups, {tokens:,} trained tokens, rows of {arguments.row_tokens:,}."
    return f"{head}\n\n{speed_table(found, tokens)}", speed_limits(found, PLAIN)


def _head(arguments: argparse.Namespace) -> tuple[str, list[Limit]]:
    shape = Shape(tokens=arguments.head_tokens, vocabulary=arguments.vocabulary)
    device = torch.device(arguments.device)
    found = compare(shape, rounds=arguments.rounds, threads=arguments.threads, device=device)
    return head_table(found, shape), head_limits(found)


def _growth(arguments: argparse.Namespace) -> tuple[str, list[Limit]]:
    sizes = [size for size in SIZES if size <= max(arguments.longest, FULL)]
    found = growth(sizes, rounds=arguments.rounds, threads=arguments.threads, row_tokens=ENOUGH_TOKENS)
    return growth_table(found, FULL), growth_limits(found, FULL)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of torch")
    parser.add_argument("--groups", type=int, default=64, help="gradient: groups of the batch")
    parser.add_argument("--row-tokens", type=int, default=2048, help="gradient: tokens of a row")
    parser.add_argument("--head-tokens", type=int, default=Shape().tokens, help="head: trained tokens")
    parser.add_argument("--vocabulary", type=int, default=Shape().vocabulary, help="head: its tokens")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="head: where it runs")
    parser.add_argument("--longest", type=int, default=SIZES[-1], help="growth: tokens of the largest step")
    parser.add_argument("--docs", action="store_true", help=f"write the tables into {DOCS.relative_to(ROOT)}")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts, print their tables and limits; returns the exit status."""
    arguments = _arguments(argv)
    warnings.filterwarnings("ignore", module="trl")
    without_progress_bars()
    sections, limits = [], []
    for part in arguments.parts:
        table, found = {"gradient": _gradient, "head": _head, "growth": _growth}[part](arguments)
        sections.append("\n".join([f"### {part}", "", table, "", *map(str, found)]))
        limits += found
        print(f"{sections[-1]}\n", flush=True)
    if arguments.docs:
        report = "\n\n".join(sections)
        DOCS.write_text(with_report(DOCS.read_text(encoding="utf-8"), report), encoding="utf-8")
    return 0 if all(limit.holds for limit in limits) else 1


if __name__ == "__main__":
    sys.exit(main())
