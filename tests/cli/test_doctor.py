"""`slipstream doctor`: what it says of this machine, and when it fails."""

import pytest
from slipstream.cli.__main__ import main
from slipstream.cli.doctor import described, lacking


def test_doctor_lists_versions_and_layers(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["doctor"])
    said = capsys.readouterr().out
    assert "Slipstream 0." in said
    for layer in ("rlimits", "seccomp", "landlock", "network_namespace", "pid_namespace", "user", "gvisor"):
        assert f"  {layer} " in said
    for library in ("PyTorch", "SymPy", "jsonschema", "HTTPX", "FastAPI"):
        assert f"  {library} " in said
    assert (status == 0) == ("refuses to start" not in said) == ("Enough for a verifier" in said)


def test_doctor_says_when_code_cannot_be_run_safely() -> None:
    layers = {"active": ["rlimits", "seccomp"], "missing": {"landlock": "Function not implemented"}}
    assert lacking(layers) == ["landlock"]
    *_, missing, conclusion = described(layers)
    assert missing.split() == ["landlock", "missing:", "Function", "not", "implemented"]
    assert conclusion.endswith("landlock")
