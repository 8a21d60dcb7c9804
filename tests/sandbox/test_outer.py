"""The detection of the isolation layers of the pod, and the reason if a layer is missing."""

from pathlib import Path

import pytest
from slipstream.sandbox.cgroup import Cgroups
from slipstream.sandbox.outer import cgroup_missing, gvisor_missing


@pytest.mark.parametrize(
    ("bound", "active"), [("536870912\n", True), ("max\n", False), (f"{1 << 62}\n", False)]
)
def test_the_cgroup_layer_is_active_if_a_cgroup_limits_memory(
    tmp_path: Path, bound: str, active: bool
) -> None:
    (tmp_path / "memory.max").write_text(bound)
    missing = cgroup_missing(Cgroups(memory=[tmp_path / "nowhere", tmp_path]))
    assert (missing == "") == active
    assert active or "no memory limit" in missing
    assert "no memory limit" in cgroup_missing(Cgroups())


@pytest.mark.parametrize(
    ("version", "detected"),
    [
        ("Linux version 4.19.0-gvisor #1 SMP Sun Jan 10 15:06:54 PST 2016\n", True),
        ("Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n", True),
        ("Linux version 4.4.0 (builder@host) (gcc 5.3.1) #1 SMP Mon Jan 11 10:00:00 UTC 2016\n", False),
        ("Linux version 6.12.0 (builder@host) (gcc 14.2) #1 SMP PREEMPT_DYNAMIC\n", False),
    ],
)
def test_gvisor_is_detected_by_the_version_of_the_kernel(
    tmp_path: Path, version: str, detected: bool
) -> None:
    (tmp_path / "version").write_text(version)
    missing = gvisor_missing(tmp_path / "version")
    assert missing == ("" if detected else "the pod runs on the node's own kernel")
    assert gvisor_missing(tmp_path / "nowhere") != ""
