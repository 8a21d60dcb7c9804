"""How full Redis is, and whether its data survive a crash."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisHealth:
    """Memory in bytes; a limit of 0 means no limit. A field is None where Redis does not report it.

    `durable` is true if Redis writes an append-only file, and the last write succeeded.
    """

    used_bytes: int | None
    limit_bytes: int | None
    durable: bool | None


def health_from(memory: Mapping[str, Any], persistence: Mapping[str, Any]) -> RedisHealth:
    """Return the health from the sections `memory` and `persistence` of INFO."""
    enabled = persistence.get("aof_enabled")
    return RedisHealth(
        used_bytes=memory.get("used_memory"),
        limit_bytes=memory.get("maxmemory"),
        durable=None if enabled is None else bool(enabled) and persistence["aof_last_write_status"] == "ok",
    )
