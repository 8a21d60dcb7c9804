"""Recipes of the papers: named combinations of the parts that the specifications describe."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from slipstream.algorithms.presets.clipped import CLIPPED
from slipstream.algorithms.presets.preset import Preset, describe
from slipstream.algorithms.presets.sequence import SEQUENCE
from slipstream.algorithms.presets.stale import STALE
from slipstream.algorithms.presets.telescope import TELESCOPE
from slipstream.algorithms.presets.weighted import WEIGHTED

PRESETS: Final[Mapping[str, Preset]] = MappingProxyType(
    {**WEIGHTED, **CLIPPED, **SEQUENCE, **STALE, **TELESCOPE}
)
"""Every recipe by name, the default (cispo) first."""

__all__ = ["PRESETS", "Preset", "describe"]
