"""Running averages of the reward by key, the baselines of the estimators ema and mixed, without torch."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from slipstream.algorithms.spec.checks import require_positive


class RunningBaselines:
    """Exponential moving average of the reward of each key (in a run, the task).

    Immutable: `after` returns new averages. A key starts at the mean of its first batch, not at 0. NaN
    rewards (withheld completions) are ignored.
    """

    __slots__ = ("_averages",)

    def __init__(self, *, averages: Mapping[str, float] = MappingProxyType({})) -> None:
        """Copy the averages. Errors: ValueError for a key that is no string, or an infinite value."""
        for key, average in averages.items():
            if not isinstance(key, str):
                raise ValueError(f"averages: got the key {key!r}, needs strings")
            number = isinstance(average, int | float) and not isinstance(average, bool)
            if not number or not math.isfinite(average):
                raise ValueError(f"averages: got {average!r} for {key!r}, needs a finite number")
        self._averages = MappingProxyType(dict(averages))

    @property
    def averages(self) -> Mapping[str, float]:
        """The average reward of each key, read-only."""
        return self._averages

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunningBaselines) and self._averages == other._averages

    __hash__ = None  # type: ignore[assignment]  # the averages are a dictionary

    def __repr__(self) -> str:
        return f"RunningBaselines(averages={dict(self._averages)!r})"

    def of(self, keys: Sequence[str], rewards: Sequence[float]) -> list[float]:
        """Return the baseline of each completion before this batch. Call `after` when the batch is scored.

        The baseline of a new key is the mean of its rewards in this batch, so that its first batch is
        centred, or NaN if all of them are NaN.
        """
        baselines = _means(keys, rewards) | dict(self.averages)
        return [baselines.get(key, math.nan) for key in keys]

    def after(self, keys: Sequence[str], rewards: Sequence[float], decay: float) -> "RunningBaselines":
        """Return the averages after this batch: decay × old + (1 - decay) × mean of the key's rewards.

        Raises ValueError for a decay outside (0, 1) or an infinite reward.
        """
        require_positive("decay", decay, at_most=1.0)
        if decay == 1:
            raise ValueError("decay: got 1, needs less, or the averages never move")
        moved = {
            key: mean + decay * (self.averages[key] - mean) if key in self.averages else mean
            for key, mean in _means(keys, rewards).items()
        }
        return RunningBaselines(averages=dict(self.averages) | moved)

    def to_dict(self) -> dict[str, float]:
        """Return the averages for a checkpoint; RunningBaselines(averages=...) restores them."""
        return dict(self.averages)


def _means(keys: Sequence[str], rewards: Sequence[float]) -> dict[str, float]:
    if len(keys) != len(rewards):
        raise ValueError(f"keys: got {len(keys)}, needs {len(rewards)}, one per reward")
    scored: dict[str, list[float]] = {}
    for key, reward in zip(keys, rewards, strict=True):
        if math.isinf(reward):
            raise ValueError(
                "rewards: got an infinite reward, needs finite ones (NaN for a withheld completion)"
            )
        if not math.isnan(reward):
            scored.setdefault(key, []).append(reward)
    return {key: math.fsum(values) / len(values) for key, values in scored.items()}
