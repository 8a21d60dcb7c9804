"""The smallest complete release: a tiny model on CPUs, emulated engines, Redis, mutual TLS."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from chart.rendering import merge
from render import Release

NAME, NAMESPACE = "demo", "training"
FULLNAME = f"{NAME}-slipstream"
ROLES = ("learner", "rollout", "actor", "verifier", "teacher", "replay", "console", "redis", "probe")
CERTS_SECONDS = 60
RUN = """\
name: small
model: {tiny: {layers: 2, width: 64, heads: 2, max_tokens: 64}}
warmup: {steps: 20, batch_size: 16}
data: {kind: addition, digits: 1}
rewards: [{name: exact_match, weight: 1.0}]
algorithm: {preset: grpo}
rollout: {engine: emulated, group_size: 4, max_groups: 4, max_new_tokens: 6}
learner:
  steps: 100000
  groups_per_step: 4
  learning_rate: 1.0e-5
  max_tokens_per_row: 128
  checkpoint: {every_steps: 20}
"""
SMALL = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "4Gi"}}
VALUES: dict[str, Any] = {
    "run": {"config": RUN},
    "image": {"tag": "0.1.0"},
    "learner": {"gpu": {"count": 0}, "resources": SMALL},
    "rollout": {"defaults": {"gpu": {"count": 0}, "replicas": 2, "resources": SMALL}},
    "actor": {"drainSeconds": 5, "replicas": 2, "resources": SMALL},
    "redis": {"auth": {"existingSecret": "redis-password"}},
    "tls": {"mode": "secrets", "secrets": {role: f"tls-{role}" for role in ROLES}},
}
SECRETS = ("redis-password", *(f"tls-{role}" for role in ROLES))


def small_release(**values: Any) -> Release:
    """Return the release, with more values merged over its own."""
    return Release(name=NAME, namespace=NAMESPACE, values=merge(VALUES, values))


def user_secrets(directory: Path) -> dict[str, dict[str, bytes]]:
    """Return the Secrets of the user, created with `slipstream certs`."""
    called = ("replay", "verifier", "teacher", "learner", "rollout", "redis")
    names = [f"--san={role}={FULLNAME}-{role}" for role in called]
    domain = f"{NAME}.{NAMESPACE}.slipstream"
    subprocess.run(
        [sys.executable, "-m", "slipstream.cli", "certs", directory, f"--trust-domain={domain}", *names],
        check=True,
        capture_output=True,
        timeout=CERTS_SECONDS,
    )
    secrets = {f"tls-{role}": _files(directory / role) for role in ROLES}
    return {**secrets, "redis-password": {"password": b"correct horse\n"}}


def _files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("tls.crt", "tls.key", "ca.crt")}
