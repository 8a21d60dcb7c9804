"""Error rates of the reward `math` and of math-verify alone, on generated answers of known correctness.

    python -m benchmarks.math_answers [--seed N] [--seeds-per-kind N]

Each case is a ground truth, an answer, and whether the answer is right, which is known because the answer was
made from the ground truth: written in another notation, changed into another value (a mutant), taken from
another ground truth of the kind (a cross pair), left uncomputed, or a formula that says nothing (an attack).
A false positive is a wrong answer that is accepted, a false negative a right one that is not.
"""

import argparse
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from slipstream.answers.cpu_limit import TooSlow, cpu_limit
from slipstream.answers.equality import equal
from slipstream.answers.exact import exactly_equal, has_quotient
from slipstream.answers.latex_input import UnsupportedExpression, normalize

from benchmarks.math_answers.seeds import KINDS
from benchmarks.ratio import print_ratio

SECONDS: Final = 2.0
DIGITS: Final = 6
ATTACKS: Final = ("1=2", "i=1", "x=x", "f(1)=2", r"\emptyset", "x<x", r"\{\}", "z+1=z", "0<1", "()", "=")
Grader = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class Case:
    """An answer to a ground truth, and its correctness."""

    family: str
    truth: str
    answer: str
    right: bool


def cases(seed: int, *, seeds_per_kind: int = 30, crossed: int = 12) -> Iterator[Case]:
    """Return all cases of a seed, without repetitions."""
    chance = random.Random(seed)
    for make in KINDS:
        seeds = list({seed.truth: seed for seed in (make(chance) for _ in range(seeds_per_kind))}.values())
        for one in seeds:
            yield from (Case("writing", one.truth, answer, True) for answer in one.same)
            yield from (Case("mutant", one.truth, answer, False) for answer in one.wrong)
            yield from (Case("uncomputed", one.truth, answer, False) for answer in one.uncomputed)
            yield from (Case("attack", one.truth, answer, False) for answer in ATTACKS)
            others = chance.sample(seeds, min(crossed, len(seeds)))
            yield from (
                Case("cross pair", one.truth, chance.choice(other.same), False)
                for other in others
                if other.truth != one.truth
            )


def ours(truth: str, answer: str, *, computed: bool = True) -> bool:
    """Grade as the reward `math` does, without its pool of child processes."""
    try:
        expected, value = normalize(truth), normalize(answer)
        if computed and has_quotient(value) and not has_quotient(expected):
            return False
        exact = exactly_equal(expected, value, digits=DIGITS)
        with cpu_limit(SECONDS):
            return equal(expected, value, digits=DIGITS, computed=computed) if exact is None else exact
    except (UnsupportedExpression, TooSlow):
        return False


def math_verify_alone(truth: str, answer: str) -> bool:
    """Grade with math-verify as in its documentation."""
    from math_verify import parse, verify

    try:
        with cpu_limit(SECONDS):
            gold = _gold(truth)
            return bool(
                verify(gold, parse(rf"\boxed{{{answer}}}", parsing_timeout=None), timeout_seconds=None)
            )
    except TooSlow:
        return False


@cache
def _gold(truth: str) -> list[object]:
    from math_verify import parse

    return list(parse(rf"\boxed{{{truth}}}", parsing_timeout=None))


def counted(graders: dict[str, Grader], every: Sequence[Case]) -> dict[str, Counter[str]]:
    """Return the number of errors of each grader by family."""
    return {
        name: Counter(case.family for case in every if grade(case.truth, case.answer) is not case.right)
        for name, grade in graders.items()
    }


def table(wrong: dict[str, Counter[str]], every: Sequence[Case]) -> str:
    """Return a Markdown table with one line for each family."""
    total = Counter(case.family for case in every)
    lines = [f"| answers | made | {' | '.join(f'wrong verdicts, {name}' for name in wrong)} |"]
    lines += ["|---" * (2 + len(wrong)) + "|"]
    for family, made in total.items():
        says = "right" if family == "writing" else "wrong"
        errors = " | ".join(f"{errors[family]:,}" for errors in wrong.values())
        lines.append(f"| {family} ({says}) | {made:,} | {errors} |")
    return "\n".join(lines)


def main() -> None:
    """Grade all cases with both, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds-per-kind", type=int, default=5, help="ground truths of each kind")
    arguments = parser.parse_args()
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    every = list(cases(arguments.seed, seeds_per_kind=arguments.seeds_per_kind, crossed=5))
    wrong = counted({"`math`": ours, "math-verify alone": math_verify_alone}, every)
    print(f"{table(wrong, every)}\n")
    for name, families in wrong.items():
        print_ratio(f"wrong verdicts of {name}", families.total())


if __name__ == "__main__":
    main()
