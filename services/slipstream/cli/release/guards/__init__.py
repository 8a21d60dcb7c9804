"""Guards: what a run and the values of its release must agree on, beyond what the schemas of both say.

RUN_GUARDS compare the run with the values. The init container `check` of the learner runs them, and helm does
not, because its templates do not know the defaults of the run. VALUE_GUARDS need values that the init
container does not have, so charts/slipstream/templates/guards has them too. A test compares the two.
"""

from collections.abc import Callable, Iterator
from typing import Final

from slipstream.cli.release.guards.compute import checkpoints_of_nodes, learner, moved, pools
from slipstream.cli.release.guards.console import console
from slipstream.cli.release.guards.scoring import rewards, teacher, verifier
from slipstream.cli.release.guards.sources import data, model, owned_keys, redis, source_of_model
from slipstream.cli.release.guards.tools import tools
from slipstream.cli.release.release import Release
from slipstream.config.checks import Problem

Guard = Callable[[Release], Iterator[Problem]]

RUN_GUARDS: Final[tuple[Guard, ...]] = (owned_keys, learner, pools, model, data)
VALUE_GUARDS: Final[tuple[Guard, ...]] = (
    checkpoints_of_nodes,
    moved,
    source_of_model,
    redis,
    verifier,
    rewards,
    teacher,
    tools,
    console,
)
