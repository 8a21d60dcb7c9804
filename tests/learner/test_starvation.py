"""The message of a learner that gets no batch names the reason."""

from slipstream.learner.starvation import describe
from slipstream.records import Activity, Ledger, WorkerActivity


def worker(name: str, *, silent: float = 1.0, leases: int = 0, failure: str = "") -> WorkerActivity:
    return WorkerActivity(
        worker_id=name, silent_seconds=silent, serving_version=4, leases=leases, scoring_failure=failure
    )


def test_running_leases_are_told_with_the_oldest_and_who_holds_it() -> None:
    now = Activity(
        ledger=Ledger(leased=5, running=5),
        workers=(worker("rollout-0", leases=5),),
        oldest_lease_seconds=580.4,
        oldest_lease_worker="rollout-0",
    )
    description = describe(Ledger(), now)
    assert "5 leases are running, the oldest for 580 s at rollout-0" in description
    assert "rollout-0 (heard from 1 s ago, serves version 4, holds 5 leases)" in description
    assert "are rollout workers running?" not in description


def test_groups_that_were_filtered_since_the_last_batch_are_told_by_reason() -> None:
    before = Ledger(inserted=100, filtered={"zero_variance": 80, "unscored": 2}, retired={"expired": 1})
    now = Ledger(
        inserted=140,
        filtered={"zero_variance": 118, "unscored": 2},
        retired={"expired": 3},
        expired=6,
        buffered=2,
    )
    description = describe(before, Activity(ledger=now, workers=(worker("w"),)))
    assert "since then 40 groups were handed in" in description
    assert "38 groups were filtered (zero_variance)" in description
    assert "unscored" not in description
    assert "2 prompts were retired (expired)" in description
    assert "6 leases expired because their worker fell silent" in description
    assert "2 groups are buffered" in description


def test_withheld_completions_are_told_with_the_first_failure_of_a_reward() -> None:
    now = Activity(
        ledger=Ledger(inserted=8, withheld=64, filtered={"unscored": 8}),
        workers=(worker("a"), worker("b", failure="mine: ZeroDivisionError: division by zero")),
    )
    description = describe(Ledger(), now)
    assert "64 completions were withheld because they could not be scored" in description
    assert "the first failure of b was: mine: ZeroDivisionError: division by zero" in description


def test_only_silence_of_all_workers_asks_whether_any_is_running() -> None:
    gone, present = worker("gone", silent=500), worker("here")
    question = "are rollout workers running?"
    assert question in describe(Ledger(), Activity())
    assert question in describe(Ledger(), Activity(workers=(gone,)))
    assert question not in describe(Ledger(), Activity(workers=(gone, present)))
