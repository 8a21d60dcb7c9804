"""The import rules cover every package of Slipstream, also new ones."""

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CONTRACTS: list[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"][
    "importlinter"
]["contracts"]
EXEMPT = {
    "vllm belongs to rollout": {"rollout"},
    "redis belongs to replay": {"replay"},
    "prometheus_client belongs to telemetry": {"telemetry"},
    "Kubernetes belongs to cluster": {"cluster"},
    "FastAPI belongs to the verifier, the console, and the endpoint of the actor": {
        *("actor", "console", "verifier"),
    },
    "websockets belongs to actor": {"actor"},
    "mcp belongs to actor": {"actor"},
    "Actor, verifier, replay and what they stand on need no torch and no transformers": {
        *("cli", "lab", "learner", "rollout", "teacher"),
        *("algorithms", "cuda", "tokens", "weights"),
    },
}
GENERATED = {"v1"}


def packages() -> set[str]:
    entries = (ROOT / "services/slipstream").iterdir()
    return {path.stem for path in entries if path.suffix == ".py" or (path / "__init__.py").exists()} - {
        "__init__"
    }


def test_every_package_is_in_a_layer():
    (layers,) = [contract["layers"] for contract in CONTRACTS if contract["type"] == "layers"]
    named = [name.strip().removeprefix("slipstream.") for layer in layers for name in layer.split("|")]
    assert sorted(named) == sorted(packages())


def test_a_library_is_forbidden_to_every_package_but_its_owners():
    forbidding = [contract for contract in CONTRACTS if contract["type"] == "forbidden"]
    assert {contract["name"] for contract in forbidding} == set(EXEMPT)
    for contract in forbidding:
        sources = {name.removeprefix("slipstream.") for name in contract["source_modules"]}
        assert sources | EXEMPT[contract["name"]] | GENERATED == packages() | GENERATED, contract["name"]
        assert not sources & EXEMPT[contract["name"]]
