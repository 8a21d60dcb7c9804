"""What the rewards of one verifier share: its children, its memory, its queue, its metrics and its log."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from slipstream.config import VerifierConfig
from slipstream.config.rewards import RewardSection
from slipstream.sandbox.sandbox import Sandbox
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.verifier.admission import AdmissionQueue
from slipstream.verifier.cache import Reads, RewardCache, VerdictCache
from slipstream.verifier.setting_names import SETTING_NAMES
from slipstream.verifier.workers.pool import Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Collaborators of rewards. To make it starts nothing: `start` does, and only what a reward asked for."""

    config: VerifierConfig
    metrics: Metrics
    log: Log
    queue: AdmissionQueue
    workers: Workers
    cache: VerdictCache
    sandbox: Sandbox
    starting: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """What else begins with `start`; a reward adds to it when it is made, and ends what it began."""

    @classmethod
    def make(cls, config: VerifierConfig, *, metrics: Metrics, log: Log) -> "Resources":
        """The resources that a configuration asks for."""
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
            settings=SETTING_NAMES,
        )
        return cls(
            config=config,
            metrics=metrics,
            log=log,
            queue=AdmissionQueue(config.queue, metrics=metrics),
            workers=workers,
            cache=cache,
            sandbox=sandbox,
        )

    def reward_cache(self, config: RewardSection, *, reads: Reads) -> RewardCache | None:
        """What a costly reward remembers its verdicts in; None when the configuration wants no memory."""
        if not self.config.cache_entries:
            return None
        return RewardCache(self.cache, config, reads=reads, queue=self.queue)

    async def start(self) -> None:
        """Start what the rewards need. Errors: WorkerLost or SandboxLost when a child process
        cannot start, TooFewLayers."""
        await self.workers.start()
        await self.sandbox.start()
        for start in self.starting:
            await start()

    async def close(self) -> None:
        """Stop it, when no call runs."""
        await self.sandbox.close()
        await self.workers.close()
