"""What a learner that gets no batch says about the reason."""

import pytest
from slipstream.learner.starvation import describe
from slipstream.records import Activity, Ledger, WorkerActivity, WorkerKind


def actor(name: str, *, silent: float = 1.0, leases: int = 0, failure: str = "") -> WorkerActivity:
    return WorkerActivity(
        worker_id=name,
        kind=WorkerKind.ACTOR,
        silent_seconds=silent,
        serving_version=4,
        leases=leases,
        scoring_failure=failure,
    )


def rollout(name: str, *, silent: float = 1.0, serving: int = 4) -> WorkerActivity:
    return WorkerActivity(
        worker_id=name, kind=WorkerKind.ROLLOUT, silent_seconds=silent, serving_version=serving, leases=0
    )


def test_running_leases_are_told_with_the_oldest_and_who_holds_it() -> None:
    now = Activity(
        ledger=Ledger(leased=5, running=5),
        workers=(actor("actor-0", leases=5), rollout("rollout-0")),
        oldest_lease_seconds=580.4,
        oldest_lease_worker="actor-0",
    )
    description = describe(Ledger(), now)
    assert "5 leases are running, the oldest for 580 s at actor-0" in description
    assert "actors: actor-0 (heard from 1 s ago, samples version 4, holds 5 leases)" in description
    assert "rollouts: rollout-0 (heard from 1 s ago, serves version 4)" in description
    assert "running?" not in description


def test_groups_that_were_filtered_since_the_last_batch_are_told_by_reason() -> None:
    before = Ledger(inserted=100, filtered={"zero_variance": 80, "unscored": 2}, retired={"expired": 1})
    now = Ledger(
        inserted=140,
        filtered={"zero_variance": 118, "unscored": 2},
        retired={"expired": 3},
        expired=6,
        buffered=2,
    )
    description = describe(before, Activity(ledger=now, workers=(actor("w"),)))
    assert "since then 40 groups were handed in" in description
    assert "38 groups were filtered (zero_variance)" in description
    assert "unscored" not in description
    assert "2 prompts were retired (expired)" in description
    assert "6 leases expired because their worker fell silent" in description
    assert "2 groups are buffered" in description


def test_withheld_completions_are_told_with_the_first_failure_of_a_reward() -> None:
    now = Activity(
        ledger=Ledger(inserted=8, withheld=64, filtered={"unscored": 8}),
        workers=(actor("a"), actor("b", failure="mine: ZeroDivisionError: division by zero")),
    )
    description = describe(Ledger(), now)
    assert "64 completions were withheld because they could not be scored" in description
    assert "the first failure of b was: mine: ZeroDivisionError: division by zero" in description


@pytest.mark.parametrize("kind", ["actor", "rollout"])
def test_a_kind_of_worker_of_which_nothing_is_heard_is_named_and_the_other_is_not(kind: str) -> None:
    other = rollout("rollout-0") if kind == "actor" else actor("actor-0")
    assert f"no {kind} was ever heard from: is one running?" in describe(Ledger(), Activity(workers=(other,)))
    assert describe(Ledger(), Activity(workers=(other,))).count("is one running?") == 1
    assert describe(Ledger(), Activity()).count("was ever heard from: is one running?") == 2
    assert "starts as many as rollout.workers and actor.workers say" in describe(Ledger(), Activity())


def test_only_silence_of_all_workers_of_a_kind_asks_whether_any_is_running() -> None:
    gone, present, served = actor("gone", silent=500), actor("here"), rollout("rollout-0")
    question = "no actor was heard from of late: is one running?"
    assert question in describe(Ledger(), Activity(workers=(gone, served)))
    assert "running?" not in describe(Ledger(), Activity(workers=(gone, present, served)))


def test_a_rollout_before_its_first_version_serves_none() -> None:
    starting = rollout("rollout-0", serving=-1)
    assert "rollout-0 (heard from 1 s ago, serves no version)" in describe(
        Ledger(), Activity(workers=(starting,))
    )
