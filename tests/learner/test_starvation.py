"""What a learner that gets no batch says about the reason."""

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
    said = describe(Ledger(), now)
    assert "5 leases are running, the oldest for 580 s at rollout-0" in said
    assert "rollout-0 (heard from 1 s ago, serves version 4, holds 5 leases)" in said
    assert "are rollout workers running?" not in said


def test_groups_that_were_filtered_since_the_last_batch_are_told_by_reason() -> None:
    before = Ledger(inserted=100, filtered={"zero_variance": 80, "unscored": 2}, retired={"expired": 1})
    now = Ledger(
        inserted=140,
        filtered={"zero_variance": 118, "unscored": 2},
        retired={"expired": 3},
        expired=6,
        buffered=2,
    )
    said = describe(before, Activity(ledger=now, workers=(worker("w"),)))
    assert "since then 40 groups were handed in" in said
    assert "38 groups were filtered (zero_variance)" in said
    assert "unscored" not in said
    assert "2 prompts were retired (expired)" in said
    assert "6 leases expired because their worker fell silent" in said
    assert "2 groups are buffered" in said


def test_withheld_completions_are_told_with_the_first_failure_of_a_reward() -> None:
    now = Activity(
        ledger=Ledger(inserted=8, withheld=64, filtered={"unscored": 8}),
        workers=(worker("a"), worker("b", failure="mine: ZeroDivisionError: division by zero")),
    )
    said = describe(Ledger(), now)
    assert "64 completions were withheld because they could not be scored" in said
    assert "the first failure of b was: mine: ZeroDivisionError: division by zero" in said


def test_only_silence_of_all_workers_asks_whether_any_is_running() -> None:
    gone, here = worker("gone", silent=500), worker("here")
    question = "are rollout workers running?"
    assert question in describe(Ledger(), Activity())
    assert question in describe(Ledger(), Activity(workers=(gone,)))
    assert question not in describe(Ledger(), Activity(workers=(gone, here)))
