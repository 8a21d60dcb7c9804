"""The metrics of Redis: how full it is, whether it is durable, and whether it answers."""

import asyncio
from pathlib import Path

import pytest
from redis import Redis
from replay.driver import Driver, MadeUpPrompts, run_config, serving, until
from slipstream.replay.gauges import show_redis, sweep
from slipstream.replay.redis_health import health_from
from slipstream.replay.redis_server import RedisServer
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"slipstream_{name}", labels)


def test_a_sweep_shows_memory_and_durability_and_that_redis_went_away(tmp_path: Path) -> None:
    async def play() -> None:
        server = RedisServer(tmp_path)
        await server.start()
        try:
            async with serving(server.url, run_config()) as replay:
                await swept(server, replay)
        finally:
            await server.stop()

    asyncio.run(asyncio.wait_for(play(), 60))


async def swept(server: RedisServer, replay: Driver) -> None:
    metrics, stop = Metrics(), asyncio.Event()
    with Redis.from_url(server.url) as client:
        client.config_set("maxmemory", "200mb")
    sweeping = asyncio.create_task(
        sweep(replay.store, MadeUpPrompts(), metrics=metrics, log=Log(pod="replay"), stop=stop)
    )
    await until(lambda: value(metrics, "redis_up") == 1)
    assert value(metrics, "redis_memory_bytes", what="limit") == 200 * 1024 * 1024
    assert 100_000 < (value(metrics, "redis_memory_bytes", what="used") or 0) < 200 * 1024 * 1024
    assert value(metrics, "redis_persistence_ok") == 1
    with Redis.from_url(server.url) as client:
        client.shutdown(nosave=True)
    await until(lambda: value(metrics, "redis_up") == 0)
    stop.set()
    await sweeping


@pytest.mark.parametrize(
    ("persistence", "durable"),
    [
        ({"aof_enabled": 1, "aof_last_write_status": "ok"}, 1),
        ({"aof_enabled": 1, "aof_last_write_status": "err"}, 0),
        ({"aof_enabled": 0, "aof_last_write_status": "ok"}, 0),
    ],
)
def test_redis_is_durable_with_a_file_that_takes_writes(persistence: dict[str, object], durable: int) -> None:
    metrics = Metrics()
    show_redis(health_from({"used_memory": 5, "maxmemory": 0}, persistence), metrics)
    assert value(metrics, "redis_persistence_ok") == durable
    assert value(metrics, "redis_memory_bytes", what="limit") == 0


def test_a_redis_that_reports_no_figures_is_up_and_has_no_other_metric() -> None:
    metrics = Metrics()
    show_redis(health_from({}, {}), metrics)
    assert value(metrics, "redis_up") == 1
    assert value(metrics, "redis_memory_bytes", what="used") is None
    assert value(metrics, "redis_persistence_ok") is None
