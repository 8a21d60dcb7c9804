"""The metrics pages of the pods of a simulated fleet, with the labels that scraping adds."""

from collections.abc import Iterator

from benchmarks.autoscaling.fleet import Fleet, Worker
from benchmarks.autoscaling.promql_series import Labels, Store, labels_of

SCRAPE_SECONDS = 15.0
ACTORS = ("actor-0", "actor-1")
NAMES = (
    "up",
    "slipstream_bound",
    "slipstream_groups_running",
    "slipstream_learner_waiting",
    "slipstream_ledger_groups",
    "slipstream_places",
    "slipstream_places_waiting",
    "slipstream_policy_version",
    "slipstream_publish_running",
    "slipstream_run_finished",
    "slipstream_step_seconds_count",
    "slipstream_step_seconds_sum",
)
Samples = dict[str, dict[Labels, float]]


def scrape(fleet: Fleet, store: Store) -> None:
    """Add the page of every pod to the store, and end the series of removed pods."""
    for pod, page in _pages(fleet):
        for name in NAMES:
            store.replace(name, fleet.time, page.get(name, {}), source=pod)


def _pages(fleet: Fleet) -> Iterator[tuple[str, Samples]]:
    workers = {worker.name: worker for worker in fleet.workers}
    yield "replay-0", _replay_page(fleet)
    yield "learner-0", {} if fleet.learner == "absent" else _learner_page(fleet)
    for actor in ACTORS:
        yield actor, _actor_page(fleet, actor)
    for number in range(fleet.made):
        worker = workers.get(f"w{number + 1}")
        yield f"w{number + 1}", {} if worker is None else _worker_page(fleet, worker)


def _replay_page(fleet: Fleet) -> Samples:
    def state(state: str, value: float, reason: str = "") -> tuple[Labels, float]:
        return _labels("replay", "replay-0", state=state, reason=reason), float(value)

    states = [state("inserted", fleet.inserted), state("trained", fleet.consumed)]
    if fleet.filtered:
        states.append(state("filtered", fleet.filtered, "zero_variance"))
    return {"up": {_labels("replay", "replay-0"): 1.0}, "slipstream_ledger_groups": dict(states)}


def _learner_page(fleet: Fleet) -> Samples:
    def one(value: float, **more: str) -> dict[Labels, float]:
        return {_labels("learner", "learner-0", **more): float(value)}

    page = {
        "up": one(1),
        "slipstream_bound": one(fleet.shape.groups_per_step, what="groups_per_step"),
        "slipstream_learner_waiting": one(fleet.learner == "waiting"),
        "slipstream_publish_running": one(fleet.learner == "publishing"),
        "slipstream_policy_version": one(fleet.version),
        "slipstream_run_finished": one(fleet.steps >= fleet.shape.steps),
    }
    if fleet.steps:
        page["slipstream_step_seconds_count"] = one(fleet.steps, phase="train")
        page["slipstream_step_seconds_sum"] = {
            labels: value
            for phase, seconds in fleet.busy.items()
            for labels, value in one(seconds, phase=phase).items()
        }
    return page


def _actor_page(fleet: Fleet, actor: str) -> Samples:
    """Return the page of an actor, which reports all free places as long as it waits for admission."""
    serving = [worker for worker in fleet.workers if worker.serves_at <= fleet.time]
    free = sum(fleet.shape.places - len(worker.groups) for worker in serving)
    labels = _labels("actor", actor)
    return {"up": {labels: 1.0}, "slipstream_places_waiting": {labels: float(free)}}


def _worker_page(fleet: Fleet, worker: Worker) -> Samples:
    serving, running = worker.serves_at <= fleet.time, len(worker.groups)
    labels = _labels("rollout", worker.name, pool=worker.pool)
    return {
        "up": {labels: 1.0},
        "slipstream_places": {labels: float(fleet.shape.places if serving else 0)},
        "slipstream_groups_running": {labels: float(running)},
    }


def _labels(component: str, pod: str, **more: str) -> Labels:
    return labels_of(namespace="training", release="run", component=component, pod=pod, **more)
