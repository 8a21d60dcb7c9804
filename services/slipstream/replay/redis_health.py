"""How full Redis is, and whether what it holds would survive its end."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisHealth:
    """Memory in bytes, a limit of 0 for none; durable with an append-only file whose last write succeeded.

    A field is None where Redis does not tell it.
    """

    used_bytes: int | None
    limit_bytes: int | None
    durable: bool | None


def health_from(memory: Mapping[str, Any], persistence: Mapping[str, Any]) -> RedisHealth:
    """Read the two sections of INFO."""
    enabled = persistence.get("aof_enabled")
    return RedisHealth(
        used_bytes=memory.get("used_memory"),
        limit_bytes=memory.get("maxmemory"),
        durable=None if enabled is None else bool(enabled) and persistence["aof_last_write_status"] == "ok",
    )
