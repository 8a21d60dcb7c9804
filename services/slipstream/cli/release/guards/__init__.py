"""The guards of the chart in Python, as far as they are about what run and values must agree on.

charts/slipstream/templates/guards says the same to `helm install`. A test compares the two case by case.
"""

from collections.abc import Callable, Iterator
from typing import Final

from slipstream.cli.release.guards.compute import checkpoints_of_nodes, learner, pools
from slipstream.cli.release.guards.scoring import rewards, teacher, verifier
from slipstream.cli.release.guards.sources import data, model, owned_keys, redis
from slipstream.cli.release.release import Release
from slipstream.config.checks import Problem

GUARDS: Final[tuple[Callable[[Release], Iterator[Problem]], ...]] = (
    owned_keys,
    learner,
    checkpoints_of_nodes,
    pools,
    model,
    data,
    redis,
    verifier,
    rewards,
    teacher,
)
