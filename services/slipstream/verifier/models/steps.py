"""The steps of an answer, and one number of their scores."""

from collections.abc import Callable, Mapping, Sequence
from math import fsum, prod


def split_steps(text: str, separator: str) -> list[str]:
    """The parts between separators without white space around them; those that are empty are left out."""
    return [step for part in text.split(separator) if (step := part.strip())]


# aggregation → one score of the scores of at least one step, each 0 to 1, first to last
AGGREGATIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda scores: fsum(scores) / len(scores),
    "last": lambda scores: scores[-1],
    "min": min,
    "product": prod,
}
