"""cluster.yaml of the chart in Python: the keys that the chart sets, which override those of the run.

charts/slipstream/templates/config/_cluster.tpl says the same. A test compares the two for every example of
the chart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.cli.release.nulls import Section

PORTS = {"replay": 50051, "verifier": 50052, "learner": 50053, "rollout": 50054, "teacher": 50055}
WEIGHTS, METRICS, REDIS = 29500, 9464, 6379
SETTINGS = "/etc/slipstream"
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names of a release, from which addresses and identities are made."""

    release: str = "release"
    namespace: str = "default"

    def full(self, values: Values) -> str:
        """Return the prefix of the names of its objects."""
        name = values.get("nameOverride") or "slipstream"
        own = self.release if name in self.release else f"{self.release}-{name}"
        return values.get("fullnameOverride") or own


def learner_ranks(values: Values) -> int:
    """Return the number of the learner's ranks in all of its pods."""
    learner = values["learner"]
    gpus: int = learner["gpu"]["count"]
    return int(learner["nodes"]) * int(gpus or learner["ranksPerNode"])


def pools(values: Values) -> list[Section]:
    """Return every pool with the defaults of all pools."""
    rollout = values["rollout"]
    return [rollout["defaults"].with_keys(pool) for pool in rollout["pools"]]


def cluster_tree(values: Values, run: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """Return the keys that the chart sets, which with `model.mode: warmup` are not `model` and `warmup`."""
    full = names.full(values)
    at = {room: {"address": f"{full}-{room}:{PORTS[room]}"} for room in ("replay", "verifier", "teacher")}
    own_drain = (run.get("actor") or {}).get("drain_seconds")
    drain = values["actor"].get("drainSeconds") or 0 if own_drain is None else own_drain
    name = values["run"].get("name") or names.release
    tree: dict[str, Any] = {
        "name": name,
        "run_dir": f"/var/lib/slipstream/{name}",
        "replay": {**at["replay"], **_redis(values, full)},
        "verifier": at["verifier"],
        "learner": {
            "address": f"{full}-learner:{PORTS['learner']}",
            "ranks": learner_ranks(values),
            "stay": True,
            "checkpoint": {"stop_seconds": values["learner"]["stopSeconds"]},
        },
        "rollout": {"address": f"[::]:{PORTS['rollout']}", "workers": 1},
        "actor": {"workers": 1, "drain_seconds": drain},
        "weights": {"port": WEIGHTS},
        "telemetry": {"host": "::", "port": METRICS},
        "rpc": _rpc(values, names),
    }
    if values["tls"]["mode"] != "none":
        tree["rollout"]["server_name"] = f"{full}-rollout"
    if values["model"]["mode"] != "warmup":
        tree |= {"model": {"path": model_path(values), "tiny": None}, "warmup": None}
    if isinstance((run.get("algorithm") or {}).get("distillation"), Mapping):
        tree["teacher"] = at["teacher"]
    for pod in _with_gpus(values, [kind for kind in ("learner", "verifier", "teacher") if kind in tree]):
        tree[pod]["device"] = "cuda"
    return tree


def _with_gpus(values: Values, kinds: list[str]) -> list[str]:
    """Return the components with GPUs among `kinds` and rollout; they must use their GPUs."""
    kinds = [kind for kind in kinds if values[kind]["gpu"]["count"] > 0]
    return kinds + ["rollout"] * any(pool["gpu"]["count"] > 0 for pool in pools(values))


def model_path(values: Values) -> str:
    """Return the path in the pods of a model that is mounted or downloaded."""
    model = values["model"]
    if model["mode"] == "volume":
        directory = model["volume"]["directory"]
        return f"/models/{directory}" if directory else "/models"
    repository, revision = (model["download"][key].replace("/", "--") for key in ("repository", "revision"))
    return f"/models/{repository}-{revision}"


def _rpc(values: Values, names: Names) -> dict[str, Any]:
    tls = values["tls"]
    if tls["mode"] == "none":
        return {"plaintext": True}
    domain = tls.get("trustDomain") or f"{names.release}.{names.namespace}.slipstream"
    folder = f"{SETTINGS}/tls"
    files = {"certificate": f"{folder}/tls.crt", "key": f"{folder}/tls.key", "authority": f"{folder}/ca.crt"}
    return {"tls": {**files, "trust_domain": domain}}


def _redis(values: Values, full: str) -> dict[str, Any]:
    redis, user, database, password = values["redis"], "replay", 0, True
    host, tls, authority = f"{full}-redis:{REDIS}", values["tls"]["mode"] != "none", "ca.crt"
    if redis["mode"] == "external":
        other = redis["external"]
        name = f"[{other['host']}]" if ":" in other["host"] else other["host"]
        host, user, database = f"{name}:{other['port']}", other["username"], other["database"]
        tls, authority, password = other["tls"], other.get("authorityKey", ""), bool(other["existingSecret"])
    tree = {"redis_url": f"{'rediss' if tls else 'redis'}://{host}/{database}"}
    if password:
        tree |= {"redis_username": user, "redis_password_file": f"{SETTINGS}/redis/password"}
    if tls and authority:
        tree["redis_authority"] = f"{SETTINGS}/redis/ca.crt"
    return tree
