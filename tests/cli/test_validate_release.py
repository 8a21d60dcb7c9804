"""`slipstream validate RUN --values VALUES` checks a run as the pods of a release would."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli.test_validate import make_model, make_rows
from slipstream.cli.__main__ import main

Output = pytest.CaptureFixture[str]
RUN: dict[str, Any] = {
    "data": {"kind": "file", "path": "/data/train.jsonl"},
    "rewards": [{"name": "exact_match", "weight": 1.0}],
    "rollout": {"max_new_tokens": 4},
    "evaluation": {"prompts": 4},
}
MINE = {"evaluation": {"prompts": 4, "reward": "mine"}}
VALUES: dict[str, Any] = {
    "model": {"mode": "volume", "volume": {"existingClaim": "models", "directory": "policy"}},
    "data": {"existingClaim": "prompts"},
    "redis": {"auth": {"existingSecret": "redis-password"}},
}
CPU = {"learner": {"gpu": {"count": 0}}, "rollout": {"defaults": {"gpu": {"count": 0}}}}
VERIFIER = {"image": {"repository": "slipstream/verifier"}, "models": {"existingClaim": "models"}}
PARAMETERS = 1_000_000_000


class Job:
    """A run and its values as files, and the output of the command for them."""

    def __init__(self, folder: Path, capsys: Output) -> None:
        self.folder, self._capsys = folder, capsys

    def write(self, name: str, tree: Any) -> Path:
        file = self.folder / name
        file.write_text(yaml.safe_dump(tree), encoding="utf-8")
        return file

    def validate(self, *options: str, run: Any = RUN, values: Any = VALUES, status: int = 0) -> str:
        files = str(self.write("my.yaml", run)), str(self.write("first.yaml", values))
        assert main(["validate", files[0], "--values", files[1], *options]) == status, (
            self._capsys.readouterr().err
        )
        out, err = self._capsys.readouterr()
        return out if status == 0 else err

    def refused(self, *options: str, **trees: Any) -> str:
        return self.validate(*options, **trees, status=2)


@pytest.fixture
def job(tmp_path: Path, capsys: Output) -> Job:
    return Job(tmp_path, capsys)


@pytest.fixture
def mounted(tmp_path: Path) -> list[str]:
    """Return the options that name local copies of both volumes."""
    (tmp_path / "models").mkdir()
    make_model(tmp_path / "models" / "policy", max_position_embeddings=64)
    (tmp_path / "prompts").mkdir()
    make_rows(tmp_path / "prompts" / "train.jsonl", *(f"w1 w2 w{i} {i}" for i in range(200)))
    return ["--models", str(tmp_path / "models"), "--data", str(tmp_path / "prompts")]


def test_files_that_only_the_cluster_has_are_not_checked(job: Job) -> None:
    out = job.validate()
    assert "my.yaml with " in out
    assert " is valid\n" in out
    assert "model.path: /models/policy is in the cluster and was not looked at" in out
    assert "`--data DIR` names a copy of /data here" in out


def test_local_copies_of_volumes_are_checked_in_their_place(job: Job, mounted: list[str]) -> None:
    assert "was not looked at" not in job.validate(*mounted)
    long = {**RUN, "rollout": {"max_new_tokens": 100}}
    assert "that is more than the model's context of 64" in job.refused(*mounted, run=long)
    assert "does not exist" in job.refused("--models", str(job.folder), *mounted[2:])
    assert "is not a directory" in job.refused("--models", "nowhere")


def test_the_context_is_the_one_that_the_pods_use(job: Job, mounted: list[str]) -> None:
    """Pods do not measure prompts: the limits are a training row and the context of the model."""
    row = "engine context                     {} tokens of the model's 64"
    assert row.format(48) in job.validate(*mounted, run={**RUN, "learner": {"max_tokens_per_row": 48}})
    assert row.format(64) in job.validate(*mounted)
    run_tree = {**RUN, "rollout": {"max_new_tokens": 4, "context_tokens": 32}}
    assert row.format(32) in job.validate(*mounted, run=run_tree)


def test_an_option_beyond_the_context_of_a_model_without_a_local_copy_is_a_note(
    job: Job, mounted: list[str]
) -> None:
    tokens = {"enable_chunked_prefill": False, "max_num_batched_tokens": 300}
    run = {**RUN, "rollout": {"max_new_tokens": 4, "vllm": tokens}, "learner": {"max_tokens_per_row": 1024}}
    assert "note: rollout.vllm.max_num_batched_tokens: is 300, below the engine's" in job.validate(run=run)
    assert "max_num_batched_tokens" not in job.validate(*mounted, run=run)


def test_the_number_of_ranks_is_that_of_the_values(job: Job) -> None:
    assert "learner ranks                      8" in job.validate(
        "--set", "learner.gpu.count=4,learner.nodes=2,learner.checkpoints.accessModes={ReadWriteMany}"
    )


def test_the_run_may_be_in_the_values(job: Job, capsys: Output) -> None:
    file = job.write("whole.yaml", {**VALUES, "run": {"config": yaml.safe_dump(RUN)}})
    assert main(["validate", "--values", str(file)]) == 0
    assert main(["validate", "--values", str(job.write("none.yaml", VALUES))]) == 2
    assert "no run: name its YAML file" in capsys.readouterr().err


def test_a_key_of_the_run_is_no_value_of_the_chart(job: Job) -> None:
    assert "('steps' was unexpected)" in job.refused("--set", "learner.steps=5")


@pytest.mark.parametrize("option", ["--models", "--data", "--set-file"])
def test_an_option_of_a_release_without_values_is_refused(option: str, job: Job, capsys: Output) -> None:
    with pytest.raises(SystemExit):
        main(["validate", str(job.write("my.yaml", RUN)), option, "a=b"])
    assert f"{option} needs --values FILE" in capsys.readouterr().err


def with_size(folder: Path, parameters: int) -> None:
    """Write a sparse file of weights with a number of parameters."""
    size = 4 * parameters
    header = json.dumps(
        {"model.norm.weight": {"dtype": "F32", "shape": [parameters], "data_offsets": [0, size]}}
    )
    with (folder / "models" / "policy" / "model.safetensors").open("wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header.encode())
        stream.truncate(stream.tell() + size)


def test_a_learner_without_memory_for_its_ranks_is_refused(job: Job, mounted: list[str]) -> None:
    """On CPUs a parameter needs 4 + 4 + 8 bytes, and for publication 4 more, and 1 for the log of changes."""
    with_size(job.folder, PARAMETERS)
    small = {**VALUES, **CPU, "learner": {"gpu": {"count": 0}, "resources": limits("18Gi")}}
    err = job.refused(*mounted, values=small)
    assert "values learner.resources.limits.memory: is 18.0 GiB, and 1 rank(s)" in err
    assert f"need at least {21 * PARAMETERS / 2**30:.1f} GiB in a pod" in err
    enough = {**small, "learner": {"gpu": {"count": 0}, "resources": limits("20Gi")}}
    assert "learner memory" in job.validate(*mounted, values=enough)


def test_with_gpus_the_memory_is_that_of_the_published_weights(job: Job, mounted: list[str]) -> None:
    with_size(job.folder, PARAMETERS)
    values = {**VALUES, "learner": {"resources": limits("3Gi")}}
    assert "the weights that its ranks publish need at least 4.7 GiB" in job.refused(*mounted, values=values)
    assert job.validate(*mounted, values={**VALUES, "learner": {"resources": limits("5Gi")}})


def test_a_claim_that_is_too_small_for_its_checkpoints_is_refused(job: Job, mounted: list[str]) -> None:
    """Three checkpoints of 12 bytes a parameter are 33.5 GiB, and the stored completions 4 GiB."""
    with_size(job.folder, PARAMETERS)
    err = job.refused(*mounted, "--set", "learner.checkpoints.size=37Gi")
    assert "values learner.checkpoints.size: is 37.0 GiB, and 3 checkpoints" in err
    assert "take 33.5 GiB, beside 4.0 GiB of completions" in err
    assert job.validate(*mounted, "--set", "learner.checkpoints.size=38Gi")


def test_rollouts_without_memory_for_an_arriving_version_are_refused(job: Job, mounted: list[str]) -> None:
    """On CPUs a rollout holds 0.47 GiB of weights, a cache of 2 GiB, a version and a delta that arrives."""
    with_size(job.folder, PARAMETERS // 8)
    cpu = {"learner": {"gpu": {"count": 0}, "resources": limits("20Gi")}}
    run = {**RUN, "rollout": {**RUN.get("rollout", {}), "kv_cache_gib": 2}}

    def values(memory: str) -> dict[str, Any]:
        return {**VALUES, **cpu, "rollout": {"defaults": {"gpu": {"count": 0}, "resources": limits(memory)}}}

    err = job.refused(*mounted, values=values("3Gi"), run=run)
    assert "weights.staging_mib: is 1024, so 1 process(es) of an engine need 0.7 GiB each" in err
    assert job.validate(*mounted, values=values("3300Mi"), run=run)
    never = {**run, "weights": {"staging_mib": 0}}
    assert "staging_mib" not in job.validate(*mounted, values=values("2900Mi"), run=never)
    low = {**run, "weights": {"staging_mib": 100}}
    out = job.validate(*mounted, values=values("2900Mi"), run=low)
    assert "weights.staging_mib: is 100, and a version has " in out
    assert "engines pause while it arrives" in out


def limits(memory: str) -> dict[str, Any]:
    return {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": memory}}


TOOLS = {"kind": "chat_tools", "tools": [{"kind": "python", "memory_mib": 2048}]}
CASES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {
            "algorithm": {
                "preset": "grpo",
                "kl": {"coefficient": 0.1},
                "reference": {"path": "/elsewhere/reference"},
            }
        },
        {},
        "algorithm.reference.path: is /elsewhere/reference, where the learner has no volume",
    ),
    (
        {"rollout": {"kv_cache_gib": 6, "max_new_tokens": 4}},
        {
            "learner": {"gpu": {"count": 0}},
            "rollout": {"defaults": {"gpu": {"count": 0}, "resources": limits("6Gi")}},
        },
        "rollout.kv_cache_gib: is 6, and a worker of the pool default may have 6.0 GiB",
    ),
    (
        {"rewards": [{"name": "code_tests", "memory_mib": 2048}]},
        {},
        "rewards.0.memory_mib: is 2048, and a verifier may have 2048 MiB in all",
    ),
    (
        {
            "data": {
                "kind": "mixture",
                "of": [{"kind": "addition"}, {"kind": "sort_digits", "environment": TOOLS}],
            }
        },
        {},
        "memory_mib of the tool python: is 2048, and a verifier may have 2048 MiB in all",
    ),
    (
        {"data": {"kind": "hub", "id": "org/sums"}},
        {},
        "data.kind: is hub, and the NetworkPolicies let replay reach nothing but Redis",
    ),
    (
        {"data": {"kind": "reasoning_gym", "task": "leg_counting"}},
        {},
        "data.kind: is reasoning_gym, and the image slipstream/services has no reasoning-gym",
    ),
]


@pytest.mark.parametrize(("run", "values", "message"), CASES, ids=[case[2].split(":")[0] for case in CASES])
def test_a_contradiction_between_run_and_values_is_an_error(
    job: Job, run: Any, values: Any, message: str
) -> None:
    assert message in job.refused(run={**RUN, **run}, values={**VALUES, **values})


def test_data_of_the_hub_is_allowed_without_a_network_policy(job: Job) -> None:
    run = {**RUN, "data": {"kind": "hub", "id": "org/sums"}}
    assert "replay reads it in the cluster" in job.validate("--set", "network.policies=false", run=run)


def test_a_redis_too_small_for_all_admitted_groups_is_a_note(job: Job) -> None:
    out = job.validate("--set", "redis.maxMemoryMiB=64", run={**RUN, "rollout": {"max_new_tokens": 16384}})
    assert "note: values redis.maxMemoryMiB: is 64, and 192 groups that are admitted may hold " in out


@pytest.mark.parametrize(
    ("scaling", "workers"), [({}, 20), ({"kind": "keda", "minReplicas": 1, "maxReplicas": 40}, 40)]
)
def test_fewer_groups_than_places_is_a_note(job: Job, scaling: dict[str, Any], workers: int) -> None:
    pools = [{"name": "a", "replicas": 20, "autoscaling": scaling}]
    prometheus = {"autoscaling": {"prometheus": {"address": "http://prometheus:9090"}}}
    values = {**VALUES, **prometheus, "rollout": {"pools": pools}}
    run = {**RUN, "rollout": {"max_new_tokens": 4, "max_groups": 64}}
    out = job.validate(run=run, values=values)
    assert (
        f"values actor.replicas: is 2, and 2 × 256 groups (actor.max_groups) are fewer than the {workers} × "
        in out
    )
    assert f"raise it to {workers * 64 // 256}, or" in out
    assert "actor.workers" not in out
    assert "actor.replicas" not in job.validate(run=run, values={**values, "actor": {"replicas": workers}})


def test_reward_functions_in_the_values_are_tried(job: Job, mounted: list[str]) -> None:
    run = {**RUN, **MINE, "rewards": [{"kind": "custom", "name": "mine", "function": "mine:brevity"}]}
    file = job.folder / "mine.py"
    option = ["--set-file", rf"verifier.code.mine\.py={file}"]
    file.write_text(
        "def brevity(prompt, answer):\n    return 1.0 / (1 + len(answer.text))\n", encoding="utf-8"
    )
    assert "`mine` says " in job.validate(*mounted, *option, run=run)
    file.write_text("def brevity(prompt):\n    return 1.0\n", encoding="utf-8")
    assert "rewards.0.function: mine:brevity cannot be called with a prompt, an answer" in job.refused(
        *option, run=run
    )


def test_a_reward_that_only_the_verifiers_image_has_is_not_tried(job: Job) -> None:
    run = {**RUN, **MINE, "rewards": [{"kind": "custom", "name": "mine", "function": "theirs:brevity"}]}
    assert "theirs" not in job.validate("--set", "verifier.image.repository=mine/verifier", run=run)


def test_the_models_of_the_verifier_are_not_checked(job: Job) -> None:
    run = {**RUN, **MINE, "rewards": [{"kind": "reward_model", "name": "mine", "path": "/models/reward"}]}
    values = {**VALUES, "verifier": VERIFIER}
    assert "/models/reward" not in job.validate(run=run, values=values)


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"learner": {"gpu": {"count": 0}}}, "rollout.pools[default]: has GPUs and the learner has none"),
    (
        {"rollout": {"tensor_parallel": 2}},
        {},
        "has 1 GPUs a worker, and the run's rollout.tensor_parallel is 2",
    ),
    ({"learner": {"ranks": 3}}, {"learner": {"gpu": {"count": 4}}}, "is 3, and the values start 1 × 4 = 4"),
    ({"learner": {"device": "cpu"}}, {}, "learner.device: is cpu, and the values' learner.gpu.count is 1"),
    ({"verifier": {"address": "a:1"}}, {}, "verifier.address: is set in the run, and the chart sets it"),
    ({"run_dir": "/a"}, {}, "run_dir: is set in the run, and the chart sets it for each pod"),
    ({"stages": [{"name": "a"}]}, {}, "has `stages`"),
    (
        {"data": {"kind": "file", "path": "/prompts/a.jsonl"}},
        {},
        "data.path: is /prompts/a.jsonl, where replay has no volume",
    ),
    ({}, {"data": {"existingClaim": ""}}, "data.path: is /data/train.jsonl, where replay has no volume"),
    (
        {"warmup": {"steps": 1}},
        {},
        "warmup: is in the run, and the values' model.mode volume makes no cold start",
    ),
    ({}, {"learner": {"nodes": 2}}, "values learner.nodes: is 2, and all of them write one checkpoint"),
    ({}, {"model": {"mode": "download"}}, "values model.download.repository: is empty"),
    ({}, {"rollout": {"pools": [{"name": "a", "nodes": 2}]}}, "has 2 × 1 = 2 GPUs a worker"),
    ({}, {"redis": {"auth": {"existingSecret": ""}}}, "values redis.auth.existingSecret: is empty"),
    (
        {"algorithm": {"preset": "grpo", "distillation": {}}, "teacher": {"path": "/models/teacher"}},
        {},
        "teacher.path: is /models/teacher, where the teacher has no volume",
    ),
]


@pytest.mark.parametrize(("run", "values", "message"), REFUSED, ids=[case[2] for case in REFUSED])
def test_a_run_and_values_that_helm_refuses_are_refused(
    job: Job, run: Any, values: Any, message: str
) -> None:
    assert message in job.refused(run={**RUN, **run}, values={**VALUES, **values})


@pytest.mark.parametrize(
    "key",
    [
        *("learner", "data", "image", "tls", "teacher", "podSecurityContext", "learner.stopSeconds"),
        *("learner.checkpoints", "learner.gpu.count", "rollout.pools", "rollout.defaults", "verifier.gpu"),
        *("rollout.defaults.gpu", "rollout.defaults.gpu.count", "redis.auth", "model.mode", "replay.image"),
        *("rollout.spot", "redis.external", "teacher.gpu", "teacher.models", "autoscaling"),
    ],
)
def test_the_error_names_a_null_that_removes_a_required_value(job: Job, key: str) -> None:
    """Either the schema of the chart or the reader of the values reports it."""
    run = {**RUN, "data": {"kind": "reasoning_gym", "task": "leg_counting"}} if key == "replay.image" else RUN
    section, _, name = key.rpartition(".")
    refused = job.refused("--set", f"{key}=null", run=run)
    by_schema = f"  {section or '(top level)'}: '{name}' is a required property"
    assert by_schema in refused or f"values {key}: is null, which takes the chart's own value away" in refused


@pytest.mark.parametrize(
    "key",
    [
        *("model.volume.directory", "actor.drainSeconds"),
        *("image.repository", "verifier.code", "replay.extraVolumeMounts", "learner.extraVolumeMounts"),
        *("learner.ranksPerNode", "network.policies", "run.name"),
    ],
)
def test_a_null_that_helm_installs_is_valid(job: Job, key: str) -> None:
    assert " is valid" in job.validate("--set", f"{key}=null")


def test_a_duplicate_key_in_a_file_of_values_is_refused(job: Job, capsys: Output) -> None:
    file = job.folder / "twice.yaml"
    file.write_text("image: {registry: a}\nredis: {}\nimage: {registry: b}\n", encoding="utf-8")
    assert main(["validate", str(job.write("my.yaml", RUN)), "--values", str(file)]) == 2
    assert "twice.yaml: line 3: `image` stands here again, after line 1; keep one" in capsys.readouterr().err


def test_a_pod_needs_only_a_part_of_the_values(job: Job) -> None:
    part = {key: value for key, value in VALUES.items() if key != "redis"}
    assert "redis.auth.existingSecret" in job.refused(values=part)
    assert " is valid" in job.validate("--installed", values=part)
