"""The warnings of the console about filtered groups and groups without variance."""

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


def test_a_large_share_of_filtered_groups_is_one_warning_with_the_reasons() -> None:
    share = FilteredShare(groups_per_step=10)
    warnings = []
    for at in range(20):
        share.add(ledger(10 * at, zero_variance=8 * at, unscored=at))
        warnings.append(share.warning())

    assert [at for at, text in enumerate(warnings) if text] == [3]
    assert warnings[3] == (
        "warning: 90% of the last 30 groups were filtered (24 because all their answers were rewarded alike; "
        "3 because their rewards failed)"
    )


def test_the_warning_is_repeated_after_the_share_was_small() -> None:
    share = FilteredShare(groups_per_step=1)
    warnings = []
    for inserted, filtered in ((0, 0), (10, 9), (20, 10), (30, 20)):
        share.add(ledger(inserted, zero_variance=filtered))
        warnings.append(bool(share.warning()))

    assert warnings == [False, True, False, True]


def test_equal_rewards_are_a_warning_after_several_steps_without_a_filter() -> None:
    steps = UnvariedSteps()
    warnings = []
    for share in (0.2, 1.0, 0.9, 0.95, 1.0, 0.3, 1.0, 1.0, 1.0):
        steps.add({"event": "step", "unvaried_share": share})
        warnings.append(steps.warning())

    assert [at for at, text in enumerate(warnings) if text] == [3, 8]
    assert warnings[3].startswith("warning: for 3 steps, 90% or more of the groups had equal rewards")


def test_a_step_without_new_groups_gives_no_warning() -> None:
    steps = UnvariedSteps()
    for share in (1.0, None, 1.0, None):
        steps.add({"event": "step", "unvaried_share": share})
        assert steps.warning() == ""
