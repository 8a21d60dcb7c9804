"""How long the learner waits for groups: at its start the rollouts may still load their engines."""

from slipstream.config import RunConfig


class Patience:
    """The bound of a wait. Invariant: until groups have come, it includes the start of an engine."""

    def __init__(self, config: RunConfig) -> None:
        self._wait = config.learner.sample_timeout_seconds
        self._start = config.rollout.start_timeout_seconds
        self._served = False

    @property
    def seconds(self) -> float:
        """Longest wait from now on."""
        return self._wait if self._served else self._wait + self._start

    @property
    def keys(self) -> str:
        """The keys that the bound comes from, for messages."""
        return "learner.sample_timeout_seconds" + ("" if self._served else " + rollout.start_timeout_seconds")

    def came(self) -> None:
        """Groups have come, so that an engine serves."""
        self._served = True
