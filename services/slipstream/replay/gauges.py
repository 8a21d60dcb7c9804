"""The sweep: expire leases, and update the metrics of the ledger and of Redis, every second."""

import asyncio
from collections.abc import Mapping

from slipstream.prompts import PromptSource
from slipstream.records import Ledger, Purpose, ReplayStats
from slipstream.replay import redis_health, values
from slipstream.replay.store import ReplayStore
from slipstream.rpc.errors import OutOfMemory, Unreachable
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics

SWEEP_SECONDS = 1.0
STATES = (
    "leased",
    "inserted",
    "returned",
    "expired",
    "running",
    "trained",
    "buffered",
    "in_flight",
    "fenced",
    "duplicates",
    "refills_exhausted",
    "retrained",
)


async def sweep(
    store: ReplayStore, prompts: PromptSource, *, metrics: Metrics, log: Log, stop: asyncio.Event
) -> None:
    """Every second until `stop`, expire overdue leases and update the metrics; go on if Redis fails."""
    while not stop.is_set():
        try:
            _log_sweep(await store.expire(), prompts, log)
            show(await store.stats(), metrics)
            show_redis(await store.redis_health(), metrics)
        except (Unreachable, OutOfMemory) as error:
            metrics.set("redis_up", float(isinstance(error, OutOfMemory)))
            log.warning("sweep failed, trying again", error=error)
        await _pause(stop)


def _log_sweep(swept: values.Swept, prompts: PromptSource, log: Log) -> None:
    if swept.expired:
        log.warning("leases expired: their workers sent no heartbeat", leases=swept.expired)
    if swept.renewed:
        log.warning(
            "leases extended: replay or Redis was stopped, and no heartbeat could arrive",
            leases=swept.renewed,
        )
    for retired in swept.retired:
        of_training = retired.purpose is Purpose.TRAINING
        prompt = (prompts.training if of_training else prompts.held_out)(retired.index)
        log.error(
            "prompt retired after its third fault",
            prompt=prompt.prompt_id,
            group=retired.group_id,
            fault=retired.fault,
            worker=retired.worker,
        )


def show(stats: ReplayStats, metrics: Metrics) -> None:
    """Set the gauges of the ledger."""
    ledger = stats.ledger
    for state in STATES:
        metrics.set("ledger_groups", getattr(ledger, state), state=state, reason="")
    metrics.set("ledger_groups", stats.kept, state="kept", reason="")
    _show_reasons(metrics, "filtered", ledger.filtered)
    _show_reasons(metrics, "dropped", ledger.dropped)
    for reason, count in ledger.skipped.items():
        metrics.set("prompts_skipped", count, reason=reason)
    for fault, count in ledger.retired.items():
        metrics.set("prompts_retired", count, reason=fault)
    metrics.set("ledger_tokens", ledger.tokens_inserted, state="inserted")
    metrics.set("ledger_tokens", ledger.tokens_trained, state="trained")
    metrics.set("ledger_residual", ledger.residual)
    metrics.set("admission_free", stats.admission_free)
    metrics.set("admission_paused", float(stats.admission.paused))
    metrics.set("announced_version", stats.version)


def show_redis(health: redis_health.RedisHealth, metrics: Metrics) -> None:
    """Set the gauges of a reachable Redis; figures that it does not report are left out."""
    metrics.set("redis_up", 1)
    for what, size in (("used", health.used_bytes), ("limit", health.limit_bytes)):
        if size is not None:
            metrics.set("redis_memory_bytes", size, what=what)
    if health.durable is not None:
        metrics.set("redis_persistence_ok", float(health.durable))


def in_words(ledger: Ledger) -> dict[str, object]:
    """Return the ledger as the fields of a log line."""
    by_reason = {name: sum(getattr(ledger, name).values()) for name in ("filtered", "dropped", "retired")}
    states = {state: getattr(ledger, state) for state in STATES}
    return {**states, **by_reason, "residual": ledger.residual}


def _show_reasons(metrics: Metrics, state: str, counts: Mapping[str, int]) -> None:
    for reason, count in counts.items():
        metrics.set("ledger_groups", count, state=state, reason=reason)


async def _pause(stop: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(stop.wait(), SWEEP_SECONDS)
    except TimeoutError:
        return
