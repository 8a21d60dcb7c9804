"""When the console warns that groups teach nothing."""

from slipstream.cli.launch.filtered import FilteredShare, UnvariedSteps
from slipstream.records import Ledger


def ledger(inserted: int, **filtered: int) -> Ledger:
    return Ledger(inserted=inserted, filtered=filtered)


def test_the_share_is_that_of_the_newest_groups() -> None:
    share = FilteredShare(groups_per_step=10)
    assert share.value is None
    share.add(ledger(0))
    share.add(ledger(100, zero_variance=90))
    share.add(ledger(140, zero_variance=100))

    assert (share.value, share.inserted) == (0.25, 40)


def test_a_resumed_run_counts_from_its_first_ledger() -> None:
    share = FilteredShare(groups_per_step=10)
    share.add(ledger(1000, zero_variance=1000))
    assert share.value is None
    share.add(ledger(1010, zero_variance=1001))
    assert share.value == 0.1


def test_most_groups_filtered_is_warned_of_once_with_the_reasons() -> None:
    share = FilteredShare(groups_per_step=10)
    said = []
    for at in range(20):
        share.add(ledger(10 * at, zero_variance=8 * at, unscored=at))
        said.append(share.warning())

    assert [at for at, text in enumerate(said) if text] == [3]
    assert said[3] == (
        "warning: 90% of the last 30 groups were filtered (24 because all their answers were rewarded alike; "
        "3 because their rewards failed)"
    )


def test_the_warning_is_given_again_after_it_was_better() -> None:
    share = FilteredShare(groups_per_step=1)
    said = []
    for inserted, filtered in ((0, 0), (10, 9), (20, 10), (30, 20)):
        share.add(ledger(inserted, zero_variance=filtered))
        said.append(bool(share.warning()))

    assert said == [False, True, False, True]


def test_equal_rewards_are_warned_of_after_several_steps_and_without_a_filter() -> None:
    steps = UnvariedSteps()
    said = []
    for share in (0.2, 1.0, 0.9, 0.95, 1.0, 0.3, 1.0, 1.0, 1.0):
        steps.add({"event": "step", "unvaried_share": share})
        said.append(steps.warning())

    assert [at for at, text in enumerate(said) if text] == [3, 8]
    assert said[3].startswith("warning: for 3 steps, 90% or more of the groups had equal rewards")


def test_a_step_that_generated_nothing_says_nothing() -> None:
    steps = UnvariedSteps()
    for share in (1.0, None, 1.0, None):
        steps.add({"event": "step", "unvaried_share": share})
        assert steps.warning() == ""
