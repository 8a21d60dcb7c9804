"""The `actor` section: the processes that run environments."""

from pydantic import Field

from slipstream.config.sections.section import Section


class ActorConfig(Section):
    """One actor: it leases prompts, samples from the rollouts, has the answers scored and inserts them."""

    workers: int = Field(1, ge=1)
    """Actor processes that `slipstream run` starts."""
    max_groups: int = Field(256, ge=1)
    """Most groups in work in one actor; the rollouts' places bound them too."""
    silence_seconds: float = Field(5.0, gt=0)
    """Silence of a rollout after which its completions continue on another one."""
    most_engines: int = Field(2, ge=1)
    """Most rollouts that may fail, one after the other, before they have sampled one token of a request. The
    group is then given up. A prompt that has ended three engines, under all its leases, is retired."""
    drain_seconds: float = Field(0.0, ge=0)
    """Time for running groups to finish after SIGTERM; the leases of unfinished groups are returned."""
