"""Guards on the verifier with the rewards of the run, and on the teacher."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from slipstream.cli.release.guards.compute import device_problem
from slipstream.cli.release.release import Release, below
from slipstream.cli.release.run_tree import rewards_of, tools_of, value_of
from slipstream.config.checks import Problem
from slipstream.config.rewards import KINDS, RunsIn

OUR_VERIFIERS: Final = ("", "slipstream/verifier", "slipstream/cpu")
"""Images without reward code of the user's."""
JUDGE_SECRETS: Final = "/run/secrets/judge"


def verifier(release: Release) -> Iterator[Problem]:
    """The verifier has GPUs only if a reward is a model, and has what such a reward needs."""
    values = release.values["verifier"]
    gpus, models = values["gpu"]["count"], _rewards_in(release, "model_process")
    if value_of(release.run, "verifier.device") == "cuda":
        yield from device_problem(release, "verifier")
    if gpus > 0 and not models:
        yield Problem(
            key="values verifier.gpu.count",
            reason=f"is {gpus}, and no reward of the run is a model",
            remedy="set it to 0",
        )
    for reward in models:
        yield from _model(release, reward, gpus)
    if values["models"]["existingClaim"] and values["models"]["hostPath"]:
        yield _both("verifier")


def rewards(release: Release) -> Iterator[Problem]:
    """Judges need a connection to their endpoint, functions their module, and programs their isolation."""
    for reward in _rewards_in(release, "endpoint"):
        yield from _judge(release, reward)
    for reward in rewards_of(release.run, "custom"):
        yield from _custom(release.values, reward)
    runtime = release.values["verifier"]["runtimeClassName"]
    required = value_of(release.run, "verifier.isolation.require", ["landlock"])
    sandboxed = re.search("gvisor|runsc", runtime) is not None
    tools = any(tool.get("kind") == "python" for tool in tools_of(release.run).values())
    programs = _rewards_in(release, "sandbox") or tools
    if programs and sandboxed and "landlock" in required:
        yield Problem(
            key="values verifier.runtimeClassName",
            reason=f"is {runtime}, which has no Landlock, and the run demands Landlock for the programs",
            remedy="set the run's verifier.isolation.require to [rlimits, seccomp, gvisor]",
        )


def _rewards_in(release: Release, place: RunsIn) -> list[Mapping[str, Any]]:
    """Return the rewards of the run whose scores are computed in this place."""
    return rewards_of(release.run, *(kind for kind, reward in KINDS.items() if reward.facts.runs_in == place))


def _both(room: str) -> Problem:
    return Problem(
        key=f"values {room}.models",
        reason="has an existingClaim and a hostPath",
        remedy="leave one of them empty",
    )


def _of(reward: Mapping[str, Any], key: str, reason: str, remedy: str) -> Problem:
    return Problem(key=f"rewards {reward.get('name')}", reason=f"has {key} {reason}", remedy=remedy)


def _mounted(room: Mapping[str, Any], path: str) -> bool:
    """Return whether a path of a component is in one of its volumes."""
    mounts = [mount["mountPath"] for mount in room["extraVolumeMounts"] or []]
    models = room["models"]
    if models["existingClaim"] or models["hostPath"]:
        mounts.append("/models")
    if "judge" in room and room["judge"]["existingSecret"]:
        mounts.append(JUDGE_SECRETS)
    if room.get("code"):
        mounts.append("/code")
    return any(below(path, mount) for mount in mounts)


def _model(release: Release, reward: Mapping[str, Any], gpus: int) -> Iterator[Problem]:
    values, path = release.values["verifier"], str(reward.get("path"))
    device = str(reward.get("device") or "auto")
    if not (values["image"]["repository"] or release.values["image"]["repository"]):
        yield Problem(
            key="values verifier.image.repository",
            reason=f"is empty, the run's reward {reward.get('name')} is a model, and the image "
            "slipstream/services has no torch",
            remedy="set it to slipstream/verifier, or to slipstream/cpu without a GPU",
        )
    if device.startswith("cuda") and gpus == 0:
        yield _of(
            reward,
            "device",
            f"{device}, and the values' verifier.gpu.count is 0",
            "set verifier.gpu.count to 1, or the reward's device to auto",
        )
    if not path.startswith("/") or (path.startswith("/models/") and not _mounted(values, path)):
        yield _of(
            reward,
            "path",
            f"{path}, where the verifier has no volume",
            "set the values' verifier.models.existingClaim to a claim with the model, and the path to one "
            "below /models",
        )


def _judge(release: Release, reward: Mapping[str, Any]) -> Iterator[Problem]:
    values = release.values["verifier"]
    for key in ("api_key_file", "authority"):
        if reward.get(key) and not _mounted(values, str(reward[key])):
            yield _of(
                reward,
                key,
                f"{reward[key]}, where the verifier has no volume",
                "set the values' verifier.judge.existingSecret to a Secret that has it, and the path to "
                f"{JUDGE_SECRETS}/ and its key",
            )
    if release.values["network"].get("policies") and not values["judge"]["peers"]:
        yield Problem(
            key="values verifier.judge.peers",
            reason=f"is empty, the run's reward {reward.get('name')} asks {reward.get('url')}, and the "
            "NetworkPolicies let nothing out of the verifier",
            remedy="set it to where that address is",
        )


def _custom(values: Mapping[str, Any], reward: Mapping[str, Any]) -> Iterator[Problem]:
    """The module of a custom reward is in the image. An image of the user's own is assumed to have it."""
    room = values["verifier"]
    if values["image"]["repository"] or room["image"]["repository"] not in OUR_VERIFIERS:
        return
    if reward.get("entry_point"):
        yield _of(
            reward,
            "entry_point",
            f"{reward['entry_point']}, whose package the verifier's image does not have",
            "set the values' verifier.image to one of your own, or give the reward as function",
        )
    match = re.match(r"\w+", str(reward.get("function") or ""))
    module = match[0] if match else None
    on_path = "PYTHONPATH" in [variable["name"] for variable in room["extraEnv"] or []]
    if module and module != "slipstream" and f"{module}.py" not in (room["code"] or {}) and not on_path:
        yield _of(
            reward,
            "function",
            f"{reward['function']}, and the verifier's image has no module {module}",
            rf"give its file with --set-file 'verifier.code.{module}\.py={module}.py', or the values' "
            "verifier.image with one of your own",
        )


def teacher(release: Release) -> Iterator[Problem]:
    """A run that distills has a teacher with its model."""
    if not isinstance(value_of(release.run, "algorithm.distillation"), Mapping):
        return
    values, path = release.values["teacher"], value_of(release.run, "teacher.path")
    if path is None:
        yield Problem(
            key="teacher.path",
            reason="is not set, and the run has algorithm.distillation",
            remedy="set it to a path below /models, and the values' teacher.models.existingClaim to a claim "
            "with the model",
        )
    elif not _mounted(values, str(path)):
        yield Problem(
            key="teacher.path",
            reason=f"is {path}, where the teacher has no volume",
            remedy="set the values' teacher.models.existingClaim to a claim with the model, and the path to "
            "one below /models",
        )
    if values["models"]["existingClaim"] and values["models"]["hostPath"]:
        yield _both("teacher")
    yield from device_problem(release, "teacher")
    if values["gpu"]["count"] > 1:
        yield Problem(
            key="values teacher.gpu.count",
            reason=f"is {values['gpu']['count']}, and a teacher computes on one GPU",
            remedy="set it to 1, and raise teacher.replicas",
        )
