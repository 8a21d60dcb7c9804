"""The status of a release: pods, versions, staleness, ledger, from the API server and the metrics pages."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from slipstream.cluster import forward, pause
from slipstream.cluster.api import Api
from slipstream.cluster.autoscalers import Autoscaler, autoscalers_of
from slipstream.cluster.pods import Pod, pods_of
from slipstream.cluster.release import Release
from slipstream.telemetry.readings import Buckets, Page


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """Staleness in versions of the tokens trained on since the learner started; quantiles are bucket
    bounds."""

    mean: float
    p50: float
    p99: float
    maximum: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerState:
    """The number of groups in each state, for all reasons together, and how many the ledger cannot account
    for (the residual): 0, or there is a bug."""

    groups: Mapping[str, int]
    residual: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A pod, the version that it serves or trains, and its lag behind the learner; None if it has none."""

    pod: Pod
    version: int | None
    lag: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The status of a release. A number that no pod reported is None.

    `version`: that of the learner. `announced`: the last version that the learner announced to replay.
    `failures`: why a pod has no numbers, by pod.
    """

    release: Release
    context: str
    paused: bool
    version: int | None
    announced: int | None
    finished: bool
    autoscalers: Mapping[str, Autoscaler]
    rows: tuple[Row, ...]
    staleness: Staleness | None
    ledger: LedgerState | None
    admission_free: int | None
    failures: Mapping[str, str]


def read_status(api: Api, release: Release) -> Status:
    """Read all pods at once. Errors: ClusterError of the API server; a pod that does not answer is a failure
    in the status."""
    pods, autoscalers = pods_of(api, release), autoscalers_of(api, release)
    pages, failures = _pages(forward.read_pages(api.connection, _targets(pods)))
    learners = [pages[pod.name] for pod in pods if pod.component == "learner" and pod.name in pages]
    replays = [pages[pod.name] for pod in pods if pod.component == "replay" and pod.name in pages]
    version = _first(learners, "policy_version")
    return Status(
        release=release,
        context=api.connection.context,
        paused=bool(pause.read_paused(api, release))
        or any(a.remembered is not None for a in autoscalers.values()),
        version=version,
        announced=_first(replays, "announced_version"),
        finished=_first(learners, "run_finished") == 1,
        autoscalers=autoscalers,
        rows=tuple(_row(pod, pages.get(pod.name), version) for pod in pods),
        staleness=_staleness(learners),
        ledger=next(filter(None, map(_ledger, replays)), None),
        admission_free=_first(replays, "admission_free"),
        failures=failures,
    )


def _targets(pods: Sequence[Pod]) -> list[forward.Target]:
    return [
        forward.Target(pod=pod.name, port=pod.metrics_port)
        for pod in pods
        if pod.running and pod.metrics_port is not None
    ]


def _pages(answers: Mapping[str, forward.Answer]) -> tuple[dict[str, Page], dict[str, str]]:
    pages: dict[str, Page] = {}
    failures: dict[str, str] = {}
    for pod, answer in answers.items():
        try:
            if answer.failure:
                failures[pod] = answer.failure
            else:
                pages[pod] = Page(answer.text)
        except ValueError as error:
            failures[pod] = f"not a metrics page: {error}"
    return pages, failures


def _row(pod: Pod, page: Page | None, learner: int | None) -> Row:
    name = {"learner": "policy_version", "rollout": "version_served"}.get(pod.component)
    version = _first([page], name) if page is not None and name is not None else None
    served = pod.component == "rollout" and version is not None and version >= 0
    lag = learner - version if served and learner is not None and version is not None else None
    return Row(pod=pod, version=version, lag=lag)


def _staleness(pages: Sequence[Page]) -> Staleness | None:
    histograms = [page.histogram("staleness_versions") for page in pages]
    ages = [buckets for buckets in histograms if buckets is not None and buckets.count]
    if not ages:
        return None
    total: Buckets = reduce(add, ages)
    return Staleness(
        mean=total.mean,
        p50=total.quantile(0.5),
        p99=total.quantile(0.99),
        maximum=total.quantile(1.0),
        tokens=int(total.count),
    )


def _ledger(page: Page) -> LedgerState | None:
    residual = page.value("ledger_residual")
    if residual is None:
        return None
    groups: dict[str, int] = {}
    for labels, value in page.rows("ledger_groups"):
        groups[labels["state"]] = groups.get(labels["state"], 0) + int(value)
    return LedgerState(groups=groups, residual=int(residual))


def _first(pages: Sequence[Page], name: str) -> int | None:
    values = [value for page in pages if (value := page.value(name)) is not None and math.isfinite(value)]
    return int(values[0]) if values else None
