"""The table of a mixture that `slipstream validate` prints: source × share, environment and rewards."""

from slipstream.config import RunConfig
from slipstream.config.data import MixtureData
from slipstream.config.sources import Source, sources

ABSENT = "-"
LEGEND = "weight of each reward; - does not apply; * its mean is the accuracy"


def source_table(config: RunConfig) -> list[str]:
    """Return the lines of the table; none without a mixture."""
    if not isinstance(config.data, MixtureData):
        return []
    names = [reward.name for reward in config.rewards]
    rows = [["source", "share", "environment", *names], *(_row(each, names) for each in sources(config))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return [*(line.rstrip() for line in lines), LEGEND]


def _row(source: Source, names: list[str]) -> list[str]:
    weights = {reward.name: f"{reward.weight:g}" for reward in source.rewards}
    marked = {name: text + "*" * (name == source.evaluation_reward) for name, text in weights.items()}
    cells = [marked.get(name, ABSENT) for name in names]
    return [source.name, f"{source.share:.1%}", source.environment.kind, *cells]
