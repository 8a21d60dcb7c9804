"""The number of ranks on this machine."""

import pytest
from slipstream.processes.cores import local_ranks


@pytest.mark.parametrize(
    ("value", "ranks"),
    [("4", 4), (" 4", 4), ("1", 1), (None, 1), ("", 1), ("0", 1), ("-2", 1), ("many", 1), ("2.0", 1)],
)
def test_ranks_of_this_machine(value: str | None, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that is no number of ranks counts as none, and fails no transfer of weights."""
    if value is None:
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    else:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", value)
    assert local_ranks() == ranks
