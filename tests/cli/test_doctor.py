"""`slipstream doctor`: its report about this machine, and when it fails."""

import pytest
from slipstream.cli.__main__ import main
from slipstream.cli.doctor import described, lacking, shared_limits
from slipstream.sandbox.layers import LAYERS


def test_doctor_lists_versions_and_layers(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["doctor"])
    output = capsys.readouterr().out
    assert "Slipstream 0." in output
    for layer in LAYERS:
        assert f"  {layer} " in output
    for shared in ("memory", "temporary folder", "processes"):
        assert f"  {shared:<20}" in output
    for library in ("PyTorch", "SymPy", "jsonschema", "HTTPX", "FastAPI"):
        assert f"  {library} " in output
    assert (status == 0) == ("refuses to start" not in output) == ("Enough for a verifier" in output)


def test_doctor_reports_the_limits_that_programs_share() -> None:
    limits = {"memory_mib": 2048, "scratch_mib": 500, "processes": None, "address_space_mib": None}
    assert [line.split() for line in shared_limits(limits)] == [
        ["memory", "2,048", "MiB,", "of", "the", "cgroup", "or", "of", "the", "machine"],
        ["temporary", "folder", "500", "MiB", "free"],
        ["processes", "no", "limit"],
    ]


def test_doctor_reports_that_code_cannot_be_run_safely() -> None:
    layers = {"active": ["rlimits", "seccomp"], "missing": {"landlock": "Function not implemented"}}
    assert lacking(layers) == ["landlock"]
    *_, missing, conclusion = described(layers)
    assert missing.split() == ["landlock", "missing:", "Function", "not", "implemented"]
    assert conclusion.endswith("landlock")
