"""What vLLM's scheduler says about itself, on the worker's metrics page."""

from typing import Any

from slipstream.telemetry.metrics import Metrics


class CacheUse:
    """A stat logger as vLLM calls it after every engine step (its StatLoggerBase, which is not imported)."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def record(self, scheduler_stats: Any | None, *_: Any, **__: Any) -> None:
        """Show how full the key-value cache is; a step that scheduled nothing has no statistics."""
        if scheduler_stats is not None:
            self._metrics.set("kv_cache_usage", scheduler_stats.kv_cache_usage)

    def log_engine_initialized(self) -> None:
        """Nothing to say."""

    def log(self) -> None:
        """Nothing to say."""
