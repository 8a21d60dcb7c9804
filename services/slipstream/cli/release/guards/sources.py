"""Guards on keys that the chart sets, and on the places of the model, the prompts and Redis."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from slipstream.cli.release.quantity import size_of
from slipstream.cli.release.release import Release, below
from slipstream.cli.release.run_tree import has_key, value_of
from slipstream.config.checks import Problem

OWNED: Final = (
    "run_dir",
    *(f"replay.{key}" for key in ("address", "redis_url", "redis_dir", "redis_username")),
    *(f"replay.{key}" for key in ("redis_password_file", "redis_authority")),
    *("verifier.address", "verifier.http_address", "teacher.address"),
    *("learner.address", "learner.stay", "learner.checkpoint.stop_seconds"),
    *("rollout.address", "rollout.host", "rollout.server_name"),
    *("weights.host", "weights.port", "telemetry.host", "telemetry.port", "rpc.tls", "rpc.plaintext"),
)
"""Keys that the chart sets for each pod."""
REDIS_SHARE: Final = 0.8
"""Share of the memory limit for data; Redis needs the rest to rewrite the append-only file."""
MIB: Final = 2**20


def owned_keys(release: Release) -> Iterator[Problem]:
    """The run sets no key that the chart would override without a message."""
    for key in OWNED:
        if has_key(release.run, key):
            yield Problem(
                key=key, reason="is set in the run, and the chart sets it for each pod", remedy="leave it out"
            )


def model(release: Release) -> Iterator[Problem]:
    """The model of the run comes from where `model.mode` says."""
    run, mode = release.run, release.values["model"]["mode"]
    if mode == "warmup":
        if value_of(run, "model.path") is not None:
            yield Problem(
                key="model.path",
                reason="is set in the run, and the values' model.mode is warmup, which makes model.tiny",
                remedy="set the values' model.mode to volume or download",
            )
    elif value_of(run, "warmup") is not None:
        yield Problem(
            key="warmup",
            reason=f"is in the run, and the values' model.mode {mode} makes no cold start",
            remedy="make the model with `slipstream warmup`, give it with model.mode volume, and leave "
            "`warmup` out of the run",
        )
    if mode == "download" and value_of(run, "model.tiny") is not None:
        yield Problem(
            key="model.tiny",
            reason="is in the run, and the values' model.mode is download",
            remedy="leave it out of the run, or set the values' model.mode to warmup",
        )


def source_of_model(release: Release) -> Iterator[Problem]:
    """The values say where the model is, and where its copy is kept."""
    values = release.values["model"]
    yield from {"volume": _volume, "download": _download}.get(values["mode"], _nothing)(release.values)
    yield from () if values["mode"] == "volume" else _cache(values)


def _nothing(_: Mapping[str, Any]) -> Iterator[Problem]:
    yield from ()


def _volume(values: Mapping[str, Any]) -> Iterator[Problem]:
    volume = values["model"]["volume"]
    if bool(volume["existingClaim"]) == bool(volume["hostPath"]):
        yield Problem(
            key="values model.volume",
            reason="must have one of existingClaim and hostPath, because model.mode is volume",
            remedy="set one of them",
        )


def _download(values: Mapping[str, Any]) -> Iterator[Problem]:
    download, network = values["model"]["download"], values["network"]
    for key, what in (("repository", "the name of one"), ("revision", "a commit")):
        if not download[key]:
            yield Problem(
                key=f"values model.download.{key}",
                reason="is empty, and model.mode is download",
                remedy=f"set it to {what}",
            )
    open_to_hub = network["egress"]["huggingface"]
    if network["policies"] and not open_to_hub:
        yield Problem(
            key="values network.egress.huggingface",
            reason="is false, and the NetworkPolicies do not let the download of the model out",
            remedy="set it to true, or give the model with model.mode volume",
        )
    if open_to_hub and download["proxy"] and not network["egress"]["peers"]:
        yield Problem(
            key="values network.egress.peers",
            reason=f"is empty, and model.download.proxy is {download['proxy']}",
            remedy="set it to where the proxy is",
        )
    if download["noProxy"] and not download["proxy"]:
        yield Problem(
            key="values model.download.noProxy",
            reason="is set, and there is no proxy",
            remedy="set model.download.proxy, or leave noProxy empty",
        )
    if download["authority"]["configMap"] and download["authority"]["secret"]:
        yield Problem(
            key="values model.download.authority",
            reason="names a configMap and a secret",
            remedy="leave one of them empty",
        )


def _cache(model: Mapping[str, Any]) -> Iterator[Problem]:
    cache = model["cache"]
    key = {"claim": "existingClaim", "hostPath": "hostPath"}.get(cache["kind"])
    if key is not None and not cache[key]:
        yield Problem(
            key=f"values model.cache.{key}",
            reason=f"is empty, and model.cache.kind is {cache['kind']}",
            remedy="set it",
        )


def data(release: Release) -> Iterator[Problem]:
    """Files of prompts are below a mount of replay."""
    values, tree = release.values, value_of(release.run, "data")
    mounts = [mount["mountPath"] for mount in values["replay"]["extraVolumeMounts"] or []]
    if values["data"]["existingClaim"]:
        mounts.append(values["data"]["mountPath"])
    for key, path in _data_paths(tree):
        if not any(below(path, mount) for mount in mounts):
            yield Problem(
                key=f"data.{key}",
                reason=f"is {path}, where replay has no volume",
                remedy="set the values' data.existingClaim to a claim with the file, and the path to one "
                "below the values' data.mountPath, or mount the file with replay.extraVolumes and "
                "replay.extraVolumeMounts",
            )


def _data_paths(tree: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(tree, Mapping):
        return
    parts = (tree.get("of") or []) if tree.get("kind") == "mixture" else [tree]
    for part in parts:
        if isinstance(part, Mapping) and part.get("kind") == "file":
            yield from ((key, str(part[key])) for key in ("path", "held_out_path") if part.get(key))


def redis(release: Release) -> Iterator[Problem]:
    """Redis has a password, and memory beside its data."""
    values = release.values["redis"]
    if values["mode"] == "external":
        yield from _external_redis(values["external"], plain=release.values["tls"]["mode"] == "none")
        return
    if not values["auth"]["existingSecret"]:
        yield Problem(
            key="values redis.auth.existingSecret",
            reason="is empty, and the built-in Redis needs a password",
            remedy="make a Secret with `kubectl create secret generic`, and name it",
        )
    limit, most = size_of(values["resources"]["limits"].get("memory")), values["maxMemoryMiB"]
    if limit is not None and most * MIB > limit * REDIS_SHARE:
        yield Problem(
            key="values redis.maxMemoryMiB",
            reason=f"is {most}, and rewriting the append-only file needs room in the {limit / MIB:.0f} MiB "
            "of redis.resources.limits.memory",
            remedy=f"set it to {int(limit * REDIS_SHARE / MIB)} at most, or raise the limit",
        )


def _external_redis(external: Mapping[str, Any], *, plain: bool) -> Iterator[Problem]:
    tls, allowed = external.get("tls"), external["allowPlaintext"]
    if not external["host"]:
        yield Problem(
            key="values redis.external.host", reason="is empty, and redis.mode is external", remedy="set it"
        )
    if not external["existingSecret"] and (tls or not allowed):
        yield Problem(
            key="values redis.external.existingSecret",
            reason="is empty, and redis.mode is external",
            remedy=f"set it to a Secret with the password of the user {external['username']}",
        )
    if not (tls or allowed or plain):
        yield Problem(
            key="values redis.external.tls",
            reason="is false, and prompts, completions and the password would cross the network in the clear",
            remedy="set it to true, or redis.external.allowPlaintext to true where the network is private",
        )
