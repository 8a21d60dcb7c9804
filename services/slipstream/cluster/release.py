"""One installed release: what it is called, and the workloads that it is made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from slipstream.cluster.api import DEPLOYMENT, LEADER_WORKER_SET, STATEFUL_SET, Api, Json, Kind
from slipstream.cluster.errors import ClusterUsageError

NAME, INSTANCE = "app.kubernetes.io/name", "app.kubernetes.io/instance"
COMPONENT, POOL = "app.kubernetes.io/component", "slipstream.dev/pool"
OURS = f"{NAME}=slipstream"
COMPONENTS = ("learner", "rollout", "actor", "verifier", "teacher", "replay", "console", "redis")
KINDS = {"Deployment": DEPLOYMENT, "StatefulSet": STATEFUL_SET, "LeaderWorkerSet": LEADER_WORKER_SET}


class Part(Protocol):
    """A pod or workload of a release."""

    @property
    def component(self) -> str: ...
    @property
    def pool(self) -> str: ...
    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A Deployment, StatefulSet or LeaderWorkerSet, with its desired and its ready replicas.

    A replica is a pod; a replica of a LeaderWorkerSet is a group of pods.
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
        """The kind of the workload, for paths of the API."""
        return KINDS[self.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A Helm release and its workloads."""

    name: str
    namespace: str
    workloads: tuple[Workload, ...]

    @property
    def selector(self) -> str:
        """Label selector of all objects of the release."""
        return f"{OURS},{INSTANCE}={self.name}"

    @property
    def fullname(self) -> str:
        """Prefix of the names of all objects of the release."""
        return self.learner.name.removesuffix("-learner")

    def short(self, name: str) -> str:
        """Return the name of an object of the release without the prefix of all names."""
        return name.removeprefix(f"{self.fullname}-")

    @property
    def learner(self) -> Workload:
        """The learner. Errors: ClusterUsageError if the release has none."""
        learners = [workload for workload in self.workloads if workload.component == "learner"]
        if not learners:
            raise ClusterUsageError(f"release {self.name} has no learner: is its installation complete?")
        return learners[0]

    @property
    def pools(self) -> tuple[Workload, ...]:
        """The pools of rollouts. Errors: ClusterUsageError if the release has none."""
        pools = tuple(workload for workload in self.workloads if workload.component == "rollout")
        if not pools:
            raise ClusterUsageError(
                f"release {self.name} has no rollout pool: set rollout.pools in its values"
            )
        return pools


def find_release(api: Api, name: str | None) -> Release:
    """Return the named release, or the only one. Errors: ClusterUsageError naming the releases that exist."""
    objects = [(kind, item) for kind, resource in KINDS.items() for item in api.objects(resource, OURS)]
    workloads = [(kind, item) for kind, item in objects if not _has_controller(item)]
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
        workloads=tuple(sorted(own, key=sort_key)),
    )


def _has_controller(item: Json) -> bool:
    """Return whether another object controls this one, as a LeaderWorkerSet controls its StatefulSets."""
    return any(owner.get("controller") for owner in item["metadata"].get("ownerReferences", ()))


def _not_found(api: Api, name: str | None, releases: Sequence[str]) -> str:
    what = "no Slipstream release" if name is None else f"no release {name!r}"
    if releases:
        return f"{what} in namespace {api.namespace}; it has {', '.join(releases)}"
    items = api.objects_everywhere(DEPLOYMENT, OURS)
    elsewhere = sorted({f"{label(x, INSTANCE)} in {x['metadata']['namespace']}" for x in items})
    hint = f"found {', '.join(elsewhere)}" if elsewhere else "is --namespace or --context another one?"
    return f"{what} in namespace {api.namespace}; {hint}"


def _or(names: Sequence[str]) -> str:
    return " or ".join((", ".join(names[:-1]), names[-1]))


def label(item: Json, key: str) -> str:
    """Return a label of an object; empty if it does not have the label."""
    return str(item["metadata"].get("labels", {}).get(key, ""))


def sort_key(part: Part) -> tuple[int, str, str]:
    """Return a key that sorts the parts of a release in the order of COMPONENTS, others last."""
    is_ours = part.component in COMPONENTS
    return COMPONENTS.index(part.component) if is_ours else len(COMPONENTS), part.pool, part.name


def _workload(kind: str, item: Json) -> Workload:
    return Workload(
        kind=kind,
        name=item["metadata"]["name"],
        component=label(item, COMPONENT),
        pool=label(item, POOL),
        desired=int(item["spec"].get("replicas", 1)),
        ready=int(item.get("status", {}).get("readyReplicas", 0)),
    )
