"""Ways to make one score of the scores of the steps of an answer."""

from collections.abc import Callable, Mapping, Sequence
from math import fsum, prod

# aggregation → one score of the scores of the steps: at least one, each 0 to 1, first to last
AGGREGATIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda scores: fsum(scores) / len(scores),
    "last": lambda scores: scores[-1],
    "min": min,
    "product": prod,
}
