"""One installed release: what it is called, and the workloads that it is made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from slipstream.cluster.api import DEPLOYMENT, LEADER_WORKER_SET, STATEFUL_SET, Api, Json, Kind
from slipstream.cluster.errors import ClusterUsageError

NAME, INSTANCE = "app.kubernetes.io/name", "app.kubernetes.io/instance"
COMPONENT, POOL = "app.kubernetes.io/component", "slipstream.dev/pool"
OURS = f"{NAME}=slipstream"
COMPONENTS = ("learner", "rollout", "verifier", "teacher", "replay", "redis")
KINDS = {"Deployment": DEPLOYMENT, "StatefulSet": STATEFUL_SET, "LeaderWorkerSet": LEADER_WORKER_SET}


class Named(Protocol):
    """What has a place among the parts of a release."""

    @property
    def component(self) -> str: ...
    @property
    def pool(self) -> str: ...
    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A Deployment, StatefulSet or LeaderWorkerSet of the release: how many replicas it wants and has ready.

    A replica is a pod; of a LeaderWorkerSet it is a group of pods.
    """

    kind: str
    name: str
    component: str
    pool: str
    desired: int
    ready: int

    @property
    def title(self) -> str:
        """`verifier`, or `rollout/POOL`."""
        return f"{self.component}/{self.pool}" if self.pool else self.component

    @property
    def resource(self) -> Kind:
        """Its kind as the API's paths name it."""
        return KINDS[self.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A release and what it is made of."""

    name: str
    namespace: str
    workloads: tuple[Workload, ...]

    @property
    def selector(self) -> str:
        """The labels of all its objects."""
        return f"{OURS},{INSTANCE}={self.name}"

    @property
    def fullname(self) -> str:
        """What the names of its objects begin with."""
        return self.learner.name.removesuffix("-learner")

    def short(self, name: str) -> str:
        """The name of one of its objects without what all of them begin with."""
        return name.removeprefix(f"{self.fullname}-")

    @property
    def learner(self) -> Workload:
        """Its learner. Errors: ClusterUsageError when it has none."""
        found = [workload for workload in self.workloads if workload.component == "learner"]
        if not found:
            raise ClusterUsageError(f"release {self.name} has no learner: is its installation complete?")
        return found[0]

    @property
    def pools(self) -> tuple[Workload, ...]:
        """Its rollouts. Errors: ClusterUsageError when it has none."""
        found = tuple(workload for workload in self.workloads if workload.component == "rollout")
        if not found:
            raise ClusterUsageError(
                f"release {self.name} has no rollout pool: set rollout.pools in its values"
            )
        return found


def find_release(api: Api, name: str | None) -> Release:
    """The named release, or the only one. Errors: ClusterUsageError, with the releases that there are."""
    found = [(kind, item) for kind, resource in KINDS.items() for item in api.objects(resource, OURS)]
    workloads = [(kind, item) for kind, item in found if not _is_part(item)]
    names = sorted({label(item, INSTANCE) for _, item in workloads})
    if name is None and len(names) > 1:
        raise ClusterUsageError(
            f"several releases in namespace {api.namespace}; choose --release {_or(names)}"
        )
    chosen = name if name is not None else next(iter(names), None)
    if chosen not in names:
        raise ClusterUsageError(_not_found(api, name, names))
    own = (_workload(kind, item) for kind, item in workloads if label(item, INSTANCE) == chosen)
    return Release(
        name=chosen,
        namespace=api.namespace,
        workloads=tuple(sorted(own, key=place)),
    )


def _is_part(item: Json) -> bool:
    """Whether another object controls it, as a LeaderWorkerSet does the StatefulSets that it is made of."""
    return any(owner.get("controller") for owner in item["metadata"].get("ownerReferences", ()))


def _not_found(api: Api, name: str | None, here: Sequence[str]) -> str:
    what = "no Slipstream release" if name is None else f"no release {name!r}"
    if here:
        return f"{what} in namespace {api.namespace}; it has {', '.join(here)}"
    items = api.objects_everywhere(DEPLOYMENT, OURS)
    elsewhere = sorted({f"{label(x, INSTANCE)} in {x['metadata']['namespace']}" for x in items})
    hint = f"found {', '.join(elsewhere)}" if elsewhere else "is --namespace or --context another one?"
    return f"{what} in namespace {api.namespace}; {hint}"


def _or(names: Sequence[str]) -> str:
    return " or ".join((", ".join(names[:-1]), names[-1]))


def label(item: Json, key: str) -> str:
    """A label of an object; empty without it."""
    return str(item["metadata"].get("labels", {}).get(key, ""))


def place(item: Named) -> tuple[int, str, str]:
    """Where it stands among others: in the order of the components."""
    known = item.component in COMPONENTS
    return COMPONENTS.index(item.component) if known else len(COMPONENTS), item.pool, item.name


def _workload(kind: str, item: Json) -> Workload:
    return Workload(
        kind=kind,
        name=item["metadata"]["name"],
        component=label(item, COMPONENT),
        pool=label(item, POOL),
        desired=int(item["spec"].get("replicas", 1)),
        ready=int(item.get("status", {}).get("readyReplicas", 0)),
    )
