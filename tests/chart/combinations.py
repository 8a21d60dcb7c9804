"""The chart's important switches, and combinations that have every pair of positions of two switches."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

import yaml
from chart.release_small import NAME, NAMESPACE, SMALL, VALUES
from chart.rendering import merge
from render import Release

Row = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A position of a switch: what it adds to the values and to the run."""

    values: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)


CPU = {"gpu": {"count": 0}, "resources": SMALL}
SCRAPED = {"podMonitors": {"enabled": True}, "rules": {"from": "chart"}}
PROMETHEUS = {"prometheus": {"address": "http://prometheus.monitoring:9090"}}
MODEL = {"existingClaim": "models"}
NODES = {"nodes": 2, "checkpoints": {"accessModes": ["ReadWriteMany"]}}
CONSOLE = {"enabled": True, "token": {"existingSecret": "console-token"}}
RUN = {
    "name": "combined",
    "data": {"kind": "addition", "digits": 1},
    "rewards": [{"name": "exact_match", "weight": 1.0}],
    "algorithm": {"preset": "grpo"},
}
BASE = {key: VALUES[key] for key in ("redis", "image")}


def _scaled(kind: str) -> Position:
    scaling = {"kind": kind, "minReplicas": 1, "maxReplicas": 4}
    defaults = {"autoscaling": scaling}
    return Position(
        values={"rollout": {"defaults": defaults}, "monitoring": SCRAPED, "autoscaling": PROMETHEUS}
    )


def _download(secret: str) -> Position:
    source = {"repository": "example/policy", "revision": "4f2c9d1", "tokenSecret": {"name": secret}}
    network = {"egress": {"huggingface": True}}
    return Position(values={"model": {"mode": "download", "download": source}, "network": network})


SWITCHES: Mapping[str, Mapping[str, Position]] = {
    "compute": {
        "cpu": Position(
            values={"learner": CPU, "rollout": {"defaults": CPU}}, run={"rollout": {"engine": "emulated"}}
        ),
        "gpu": Position(),
    },
    "model": {
        "warmup": Position(run={"model": {"tiny": {}}, "warmup": {"steps": 1}}),
        "download": _download("hub-token"),
        "volume": Position(values={"model": {"mode": "volume", "volume": MODEL}}),
    },
    "tls": {
        "cert-manager": Position(),
        "secrets": Position(values={"tls": VALUES["tls"]}),
        "none": Position(values={"tls": {"mode": "none"}}),
    },
    "redis": {
        "built-in": Position(),
        "external": Position(
            values={
                "redis": {
                    "mode": "external",
                    "external": {"host": "redis.example", "existingSecret": "redis"},
                }
            }
        ),
    },
    "nodes": {
        "one": Position(),
        "two": Position(values={"learner": NODES}),
        "group": Position(values={"learner": {**NODES, "workload": "LeaderWorkerSet"}}),
    },
    "scaling": {"none": Position(), "keda": _scaled("keda"), "hpa": _scaled("hpa")},
    "pools": {
        "one": Position(),
        "two": Position(
            values={
                "rollout": {
                    "pools": [{"name": "a"}, {"name": "b", "spot": True}],
                    "spot": {"nodeSelector": {"example.com/capacity": "spot"}},
                }
            }
        ),
    },
    "actor": {
        "fixed": Position(),
        "scaled": Position(
            values={"actor": {"autoscaling": {"enabled": True}}, "autoscaling": PROMETHEUS},
        ),
        "by-cpu": Position(values={"actor": {"autoscaling": {"enabled": True, "by": "cpu"}}}),
    },
    "verifier": {
        "fixed": Position(),
        "scaled": Position(values={"verifier": {"autoscaling": {"enabled": True}}}),
        "by-answers": Position(
            values={
                "verifier": {"autoscaling": {"enabled": True, "by": "answers"}},
                "autoscaling": PROMETHEUS,
            }
        ),
    },
    "teacher": {
        "none": Position(),
        "fixed": Position(
            values={"teacher": {"models": {"existingClaim": "teacher"}}},
            run={"algorithm": {"distillation": {}}, "teacher": {"path": "/models/teacher"}},
        ),
        "scaled": Position(
            values={
                "teacher": {
                    "models": {"existingClaim": "teacher"},
                    "gpu": {"count": 0},
                    "autoscaling": {"enabled": True},
                },
                "autoscaling": PROMETHEUS,
            },
            run={"algorithm": {"distillation": {"kind": "reverse"}}, "teacher": {"path": "/models/teacher"}},
        ),
    },
    "rewards": {
        "by-rules": Position(),
        "by-models": Position(
            values={
                "verifier": {
                    "image": {"repository": "slipstream/verifier"},
                    "models": {"existingClaim": "reward-models"},
                    "http": {
                        "enabled": True,
                        "peers": [{"podSelector": {"matchLabels": {"app": "notebook"}}}],
                    },
                    "judge": {
                        "existingSecret": "judge-keys",
                        "peers": [{"ipBlock": {"cidr": "192.0.2.0/24"}}],
                    },
                    "code": {"mine.py": "def reward(prompt, answer): return len(answer.text)\n"},
                }
            },
            run={
                "rewards": [
                    {"name": "reward_model", "path": "/models/reward"},
                    {"name": "judge", "url": "http://judge:8000/v1", "model": "m", "plaintext": True},
                    {"name": "mine", "kind": "custom", "function": "mine:reward"},
                ]
            },
        ),
    },
    "console": {
        "none": Position(),
        "beside": Position(values={"console": {**CONSOLE, "besideLearner": True}}),
        "open": Position(
            values={
                "console": {
                    **CONSOLE,
                    "besideLearner": True,
                    "allowControl": True,
                    "allowScaling": True,
                    "hostNames": ["runs.example.com"],
                    "peers": [{"podSelector": {"matchLabels": {"app": "ingress"}}}],
                    "ingress": {"enabled": True, "tlsSecret": "runs-example-com"},
                }
            }
        ),
    },
    "network": {"closed": Position(), "open": Position(values={"network": {"policies": False}})},
    "tests": {"on": Position(), "off": Position(values={"tests": {"enabled": False}})},
    "names": {
        "ours": Position(),
        "theirs": Position(values={"fullnameOverride": "stream", "commonLabels": {"team": "research"}}),
    },
    "operators": {"none": Position(), "role": Position(values={"cluster": {"rbac": {"create": True}}})},
}


def release_of(row: Row) -> Release:
    """Return the release with every switch in its position of the row."""
    values: dict[str, Any] = dict(BASE)
    run: dict[str, Any] = dict(RUN)
    for switch, position in row.items():
        chosen = SWITCHES[switch][position]
        values, run = merge(values, chosen.values), merge(run, chosen.run)
    return Release(name=NAME, namespace=NAMESPACE, values={**values, "run": {"config": yaml.safe_dump(run)}})


def pairwise(switches: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Return rows that have every pair of positions of two switches; greedy and deterministic."""
    missing = {
        ((one, a), (two, b))
        for one, two in combinations(switches, 2)
        for a, b in product(switches[one], switches[two])
    }
    rows: list[Row] = []
    while missing:
        row: Row = {}
        for switch, positions in switches.items():
            row[switch] = max(positions, key=lambda p, s=switch: _gain(missing, row, s, p))  # type: ignore[misc]
        met = set(combinations(row.items(), 2)) & missing
        if not met:
            row = dict(sorted(missing)[0])
            row |= {
                switch: next(iter(positions)) for switch, positions in switches.items() if switch not in row
            }
            row = {switch: row[switch] for switch in switches}
            met = set(combinations(row.items(), 2)) & missing
        missing -= met
        rows.append(row)
    return rows


def _gain(missing: set[Any], row: Row, switch: str, position: str) -> tuple[int, int]:
    """Return the number of missing pairs that a choice adds now, and the number that it can add later."""
    closed = sum(((other, chosen), (switch, position)) in missing for other, chosen in row.items())
    open_pairs = sum((switch, position) in pair for pair in missing)
    return closed, open_pairs
