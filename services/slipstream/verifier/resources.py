"""What the rewards of one verifier share: child processes, cache, admission queue, metrics and log."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from slipstream.config import VerifierConfig, rewards
from slipstream.sandbox.sandbox import Sandbox
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.verifier import admission, setting_names
from slipstream.verifier.cache import Reads, RewardCache, VerdictCache
from slipstream.verifier.workers.pool import Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Collaborators of rewards. `make` starts nothing; `start` starts only what a reward asked for."""

    config: VerifierConfig
    metrics: Metrics
    log: Log
    queue: admission.AdmissionQueue
    workers: Workers
    cache: VerdictCache
    sandbox: Sandbox
    starting: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """Further calls of `start`. A reward adds its own when it is made, and stops it in its `close`."""

    @classmethod
    def make(cls, config: VerifierConfig, *, metrics: Metrics, log: Log) -> "Resources":
        """Return the resources of a configuration."""
        workers = Workers(
            number=config.workers, memory_mib=config.worker_memory_mib, metrics=metrics, log=log
        )
        cache = VerdictCache(config.cache_entries, metrics=metrics)
        sandbox = Sandbox(
            number=config.workers,
            require=config.isolation.require,
            bubblewrap=config.isolation.bubblewrap,
            allowed_packages=config.isolation.packages,
            metrics=metrics,
            log=log,
            settings=setting_names.SETTING_NAMES,
        )
        return cls(
            config=config,
            metrics=metrics,
            log=log,
            queue=admission.AdmissionQueue(config.queue, metrics=metrics),
            workers=workers,
            cache=cache,
            sandbox=sandbox,
        )

    def reward_cache(self, config: rewards.RewardSection, *, reads: Reads) -> RewardCache | None:
        """Return a reward's part of the cache; None if verifier.cache_entries is 0."""
        if not self.config.cache_entries:
            return None
        return RewardCache(self.cache, config, reads=reads, queue=self.queue)

    async def start(self) -> None:
        """Start what the rewards asked for.

        Errors: WorkerLost or SandboxLost if a child process cannot start; TooFewLayers.
        """
        await self.workers.start()
        await self.sandbox.start()
        for start in self.starting:
            await start()

    async def close(self) -> None:
        """Stop the child processes. Call it when no answer is being scored."""
        await self.sandbox.close()
        await self.workers.close()
