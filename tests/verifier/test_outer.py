"""The outer walls that are of the whole pod: when they are found, and what is said when they are not."""

from pathlib import Path

import pytest
from slipstream.verifier.sandbox.outer import cgroup_missing, gvisor_missing


@pytest.mark.parametrize(
    ("bound", "found"), [("536870912\n", True), ("max\n", False), (f"{1 << 62}\n", False)]
)
def test_a_cgroup_counts_when_it_bounds_the_memory(tmp_path: Path, bound: str, found: bool) -> None:
    (tmp_path / "memory.max").write_text(bound)
    missing = cgroup_missing((tmp_path / "nowhere", tmp_path / "memory.max"))
    assert (missing == "") == found
    assert found or "no memory limit" in missing
    assert "no memory limit" in cgroup_missing((tmp_path / "nowhere",))


def test_gvisor_is_told_from_the_version_of_the_kernel(tmp_path: Path) -> None:
    version = tmp_path / "version"
    assert "node's own kernel" in gvisor_missing(version)
    version.write_text("Linux version 6.12.0 (builder@host) #1 SMP")
    assert "node's own kernel" in gvisor_missing(version)
    version.write_text("Linux version 4.4.0 (gVisor) #1 SMP")
    assert gvisor_missing(version) == ""
