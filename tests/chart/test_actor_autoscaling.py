"""The trigger that the chart gives KEDA for actors, evaluated on simulated actors.

places of the rollouts ─▶ groups of each actor ─▶ the query of the chart ─▶ autoscaler ─▶ number of actors
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from chart.manifests import of_kind
from chart.release_small import FULLNAME, small_release
from chart.rendering import render

from benchmarks.autoscaling.autoscaler import KUBERNETES_DEFAULT, SYNC_SECONDS, Autoscaler
from benchmarks.autoscaling.promql import compile_text
from benchmarks.autoscaling.promql_series import Store, labels_of

MOST_GROUPS = 256
"""actor.max_groups by default."""
MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Trigger:
    """The query of KEDA to Prometheus, its target for each pod, and the bounds of the number of pods."""

    query: str
    target: float
    least: int
    most: int


@pytest.fixture(scope="module")
def trigger() -> Trigger:
    scaling = {"enabled": True, "minReplicas": 1, "maxReplicas": 16}
    documents = render(
        small_release(
            actor={"autoscaling": scaling}, autoscaling={"prometheus": {"address": "http://prometheus:9090"}}
        )
    )
    (spec,) = [
        document["spec"]
        for document in of_kind(documents, "ScaledObject")
        if document["spec"]["scaleTargetRef"]["name"] == f"{FULLNAME}-actor"
    ]
    (metadata,) = [trigger["metadata"] for trigger in spec["triggers"]]
    return Trigger(
        metadata["query"], float(metadata["threshold"]), spec["minReplicaCount"], spec["maxReplicaCount"]
    )


def numbers_of_actors(
    trigger: Trigger, places: Callable[[float], int], *, minutes: int, scoring: int = 0
) -> list[int]:
    """Return the number of actors after each decision of the autoscaler.

    `places` at a time in seconds. `scoring`: groups that wait for a score in each actor.
    """
    query, store = compile_text(trigger.query), Store()
    scaler = Autoscaler(behavior=KUBERNETES_DEFAULT, most=trigger.most, replicas=trigger.least)
    numbers: list[int] = []
    for second in range(0, int(minutes * MINUTE), int(SYNC_SECONDS)):
        actors, time = scaler.replicas, float(second)
        sampling = min(MOST_GROUPS, places(time) / actors)
        scrape(store, time, actors, {"waiting": 4, "sampling": sampling, "scoring": scoring, "inserting": 2})
        total = next(iter(query(store, time).values()))
        scaler.sync(time, value=max(total / (trigger.target * actors), 1e-9), ready=actors)
        numbers.append(scaler.replicas)
    return numbers


def scrape(store: Store, time: float, actors: int, groups: dict[str, float]) -> None:
    """Add a sample of each phase of each actor; mark the series of removed actors as ended."""
    values = {
        labels_of(release="demo", namespace="training", pod=f"actor-{number}", phase=phase): value
        for number in range(actors)
        for phase, value in groups.items()
    }
    store.replace("slipstream_actor_groups", time, values, source="actors")


@pytest.mark.parametrize(("places", "needed"), [(64, 1), (400, 3), (1_024, 6), (2_048, 11)])
def test_actors_are_added_until_they_can_use_all_places(trigger: Trigger, places: int, needed: int) -> None:
    numbers = numbers_of_actors(trigger, lambda _: places, minutes=20)
    assert numbers[-1] * MOST_GROUPS >= places
    assert numbers[-1] == needed
    assert len(set(numbers[-40:])) == 1, "the number does not settle"


def test_actors_are_removed_when_the_rollouts_have_fewer_places(trigger: Trigger) -> None:
    numbers = numbers_of_actors(trigger, lambda time: 2_048 if time < 20 * MINUTE else 256, minutes=40)
    before = numbers[: int(20 * MINUTE / SYNC_SECONDS)]
    assert before[-1] == 11
    assert numbers[-1] == 2


def test_groups_that_wait_for_a_slow_verifier_add_no_actor(trigger: Trigger) -> None:
    """Each further actor would let further groups pile up, until there are `maxReplicas` actors."""
    assert set(numbers_of_actors(trigger, lambda _: 128, minutes=20, scoring=400)) == {1}
