"""How many rollouts each pool of a release has, and how a visitor changes that."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from slipstream.cluster.api import Api
from slipstream.cluster.autoscalers import autoscalers_of
from slipstream.cluster.connect import connect
from slipstream.cluster.release import Release, find_release
from slipstream.cluster.scale import scale, scale_automatically

MOST_REPLICAS: Final = 10_000


class ScaleOrder(BaseModel):
    """What a visitor asks for. Without `replicas`, KEDA scales the pool again."""

    model_config = ConfigDict(extra="forbid", strict=True)

    pool: str = Field(min_length=1)
    replicas: int | None = Field(default=None, ge=0, le=MOST_REPLICAS)
    hold: bool = False
    """Whether KEDA has to keep the number, if KEDA scales the pool."""

    @model_validator(mode="after")
    def _has_a_number_to_hold(self) -> Self:
        if self.hold and self.replicas is None:
            raise ValueError("hold needs replicas: the number that KEDA has to keep")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """The pools of rollouts of a release. Each call asks the Kubernetes API server.

    `kubeconfig`: None for the service account of the pod.
    Errors of every method: ClusterError, whose message says what is missing.
    """

    release: str
    kubeconfig: Path | None = None

    def read(self) -> list[dict[str, Any]]:
        """Return the pools: their names, the replicas that are wanted and ready, and the autoscaler."""
        api, release = self._connect()
        autoscalers = autoscalers_of(api, release)
        return [
            {
                "name": pool.title,
                "desired": pool.desired,
                "ready": pool.ready,
                "autoscaler": asdict(autoscalers[pool.name]) if pool.name in autoscalers else None,
            }
            for pool in release.pools
        ]

    def scale(self, order: ScaleOrder) -> str:
        """Do what a visitor asks for, and return what has changed in words."""
        api, release = self._connect()
        if order.replicas is None:
            return scale_automatically(api, release, order.pool)
        return scale(api, release, order.pool, order.replicas, override=order.hold)

    def _connect(self) -> tuple[Api, Release]:
        api = Api(connect(kubeconfig=self.kubeconfig))
        return api, find_release(api, self.release)
