"""`slipstream validate` finds faults of a run before a process starts; tested through the real command."""

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
from safetensors.numpy import save_file
from slipstream.cli.__main__ import main
from slipstream.cli.axes import axis_rows
from slipstream.config import parse_config
from slipstream.hub.safetensors_header import weight_files
from slipstream.prompts.gym import puzzles
from tokenizers import Tokenizer, models, pre_tokenizers

CHATTY = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}go"


def make_model(folder: Path, **settings: Any) -> Path:
    """Write the files of a model that validate reads; its tokens are the words w0 … w9."""
    folder.mkdir()
    config = {"vocab_size": 10, "max_position_embeddings": 20, "eos_token_id": 1, **settings}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"12345678")
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(10)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def make_rows(file: Path, *prompts: str) -> Path:
    file.write_text("".join(json.dumps({"prompt": text, "answer": "w1"}) + "\n" for text in prompts))
    return file


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Write a valid configuration with its own model and rows."""
    model = make_model(tmp_path / "model")
    rows = make_rows(tmp_path / "rows.jsonl", *(f"w1 w2 w{i} {i}" for i in range(40)))
    file = tmp_path / "job.yaml"
    file.write_text(
        f"model: {{path: {model}}}\ndata: {{kind: file, path: {rows}, held_out_fraction: 0.3}}\n"
        "evaluation: {prompts: 4}\nrollout: {max_new_tokens: 4}\n"
    )
    return file


def complaint(capsys: pytest.CaptureFixture[str], job: Path, *overrides: str) -> str:
    arguments = [word for override in overrides for word in ("--set", override)]
    assert main(["validate", str(job), *arguments]) == 2
    return capsys.readouterr().err


def test_a_valid_configuration_prints_its_derived_numbers(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", str(job)]) == 0

    out = capsys.readouterr().out
    assert "is valid" in out
    assert "admission capacity                 192 groups" in out
    assert "tokens per step                    at most 2,048" in out


def test_validate_imports_neither_torch_nor_vllm(job: Path) -> None:
    code = (
        "import sys; from slipstream.cli.__main__ import main; "
        f"status = main(['validate', {str(job)!r}]); "
        "print([name for name in ('torch', 'vllm', 'transformers') if name in sys.modules]); sys.exit(status)"
    )
    services = str(Path(__file__).parents[2] / "services")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": services}, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_all_problems_are_listed_without_a_traceback(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    err = complaint(capsys, job, "rollout.top_p=0.5", "model.path=/no/model", "data.path=/no/rows.jsonl")

    assert "3 problems" in err
    assert "rollout.top_p" in err
    assert "/no/model does not exist" in err
    assert "/no/rows.jsonl" in err
    assert "Traceback" not in err


def test_an_unknown_key_is_exit_status_2(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean `steps`?" in complaint(capsys, job, "learner.stps=3")


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ("config.json", "has no config.json"),
        ("model.safetensors", "has no .safetensors file"),
        ("tokenizer.json", "has no tokenizer"),
    ],
)
def test_the_error_names_an_incomplete_model(
    job: Path, capsys: pytest.CaptureFixture[str], missing: str, reason: str
) -> None:
    (job.parent / "model" / missing).unlink()

    assert reason in complaint(capsys, job)


def test_the_error_names_an_incomplete_file_of_weights(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (job.parent / "model" / "model.safetensors").write_bytes(b"1234567")

    assert "model.safetensors is empty or cut off" in complaint(capsys, job)


@pytest.mark.parametrize("damaged", ["", "{}", "[]", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_the_error_names_a_damaged_index_of_weights(
    job: Path, capsys: pytest.CaptureFixture[str], damaged: str
) -> None:
    model = job.parent / "model"
    (model / "model.safetensors").rename(model / "model-1.safetensors")
    (model / "model.safetensors.index.json").write_text(damaged)

    err = complaint(capsys, job)
    assert "1 problem" in err
    assert f"model.path: {model}/model.safetensors.index.json has no weight_map" in err
    assert "copy the model again" in err
    with pytest.raises(ValueError, match="has no weight_map of tensors to files; copy it again"):
        weight_files(model)


def test_messages_need_a_chat_template(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"messages": [{"role": "user", "content": f"w1 {i}"}], "answer": "1"} for i in range(40)]
    (job.parent / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    assert "has no chat template" in complaint(capsys, job)
    assert "the tiny model has no chat template" in complaint(
        capsys, job, "model.path=null", "model.tiny={}", "warmup={}"
    )


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"answer": "24"}, "prompt rows.jsonl:40 has the numbers ''"),
        ({"answer": "2.5", "numbers": "3 8 1"}, "prompt rows.jsonl:40 has the answer '2.5'"),
    ],
)
def test_the_error_names_a_row_that_countdown_cannot_judge(
    job: Path, capsys: pytest.CaptureFixture[str], row: dict[str, str], reason: str
) -> None:
    good = [{"prompt": f"w1 {i}", "answer": 24, "numbers": [3, 8, i]} for i in range(39)]
    rows = [*good, {"prompt": "w1 w2", **row}]
    (job.parent / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    err = complaint(capsys, job, "rewards=[{name: countdown}]", "evaluation.reward=countdown")

    assert "1 problem" in err
    assert reason in err


def test_the_last_of_many_rows_is_measured(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_rows(job.parent / "rows.jsonl", *(f"w1 {i}" for i in range(2000)), "w1 " * 17)

    assert "prompt rows.jsonl:2001 has 17 tokens" in complaint(capsys, job)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
def test_the_error_names_a_broken_file_of_the_model(
    job: Path, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    (job.parent / "model" / file).write_text("{ not json")

    assert f"{file} cannot be read" in complaint(capsys, job)


def test_a_tokenizer_with_more_tokens_than_the_model_is_an_error(
    tmp_path: Path, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model(tmp_path / "small", vocab_size=8)

    err = complaint(capsys, job, f"model.path={model}")

    assert "the tokenizer does not match the model: its token 'w9' has the id 9" in err


def test_the_error_names_a_special_token_outside_of_the_vocabulary(
    tmp_path: Path, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model(tmp_path / "odd", eos_token_id=[1, 12])

    assert "eos_token_id of config.json is 12" in complaint(capsys, job, f"model.path={model}")


def test_the_error_names_a_prompt_longer_than_the_context(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = job.parent / "rows.jsonl"
    rows.write_text(rows.read_text() + json.dumps({"prompt": "w1 " * 17, "answer": "w1"}) + "\n")

    err = complaint(capsys, job)

    assert "prompt rows.jsonl:41 has 17 tokens" in err
    assert "context of 20" in err
    assert "lower it to 3" in err


def test_the_error_names_a_completion_that_does_not_fit_into_a_training_row(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = job.parent / "rows.jsonl"
    rows.write_text(rows.read_text() + json.dumps({"prompt": "w1 " * 15, "answer": "w1"}) + "\n")

    err = complaint(capsys, job, "learner.max_tokens_per_row=16", "rollout.max_new_tokens=4")

    assert "learner.max_tokens_per_row: is 16, and prompt rows.jsonl:41 with a completion of 4 has 19" in err
    assert "raise it to 19" in err


def test_the_chat_template_counts_for_the_context(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (job.parent / "model" / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATTY}))
    questions = ["w1 " * 14, *(f"w1 {i}" for i in range(30))]
    rows = [{"messages": [{"role": "user", "content": text}], "answer": "1"} for text in questions]
    (job.parent / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    assert "prompt rows.jsonl:1 has 16 tokens" in complaint(capsys, job, "rollout.max_new_tokens=5")


@pytest.mark.parametrize(
    ("stops", "seen"), [(None, True), ({"eos_token_id": [1, 11]}, False), ({"eos_token_id": 1}, True)]
)
def test_an_end_of_turn_that_does_not_stop_generation_is_a_note(
    job: Path, capsys: pytest.CaptureFixture[str], stops: dict[str, Any] | None, seen: bool
) -> None:
    model = job.with_name("model")
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.add_special_tokens(["<begin>", "<end>"])
    tokenizer.save(str(model / "tokenizer.json"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "vocab_size": 12}))
    template = "{% for m in messages %}<begin>{{ m.content }}<end> {% endfor %}"
    settings = {"chat_template": template, "eos_token": "w1"}
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    if stops is not None:
        (model / "generation_config.json").write_text(json.dumps(stops))
    rows = job.with_name("rows.jsonl")
    turns = [{"role": "user", "content": f"w1 {i}"} for i in range(40)]
    rows.write_text("".join(json.dumps({"messages": [turn], "answer": "w2"}) + "\n" for turn in turns))

    assert main(["validate", str(job)]) == 0
    assert ("ends a turn with <end>, and generation does not stop there" in capsys.readouterr().out) is seen


def test_the_error_of_a_malformed_row_has_file_and_line(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = job.parent / "rows.jsonl"
    rows.write_text(rows.read_text() + '{"prompt": "w1"}\n')

    err = complaint(capsys, job)

    assert "rows.jsonl, line 41" in err
    assert "answer" in err


def test_the_tiny_model_accepts_only_printable_ascii(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = make_rows(tmp_path / "rows.jsonl", *(f"{i} é" for i in range(40)))
    file = tmp_path / "job.yaml"
    file.write_text(f"model: {{tiny: {{}}}}\ndata: {{kind: file, path: {rows}, held_out_fraction: 0.3}}\n")

    assert "has 'é', and the tiny model knows printable ASCII only" in complaint(capsys, file)


def test_the_tiny_model_has_one_token_per_character(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "model: {tiny: {max_tokens: 16}}\ndata: {kind: addition, digits: 4}\nrollout: {max_new_tokens: 8}\n"
    )

    assert "has 10 tokens" in complaint(capsys, file)


def test_the_error_names_a_port_in_use(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        err = complaint(capsys, job, f"replay.address=127.0.0.1:{port}")

    assert f"replay.address: port {port} of 127.0.0.1 is in use" in err


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://127.0.0.1:1/0", "127.0.0.1:1"),
        ("unix:///no/redis.sock", "/no/redis.sock"),
        ("redis://:secret@127.0.0.1:many", "127.0.0.1:many"),
    ],
)
def test_the_error_names_a_redis_that_does_not_answer_without_its_password(
    job: Path, capsys: pytest.CaptureFixture[str], url: str, place: str
) -> None:
    err = complaint(capsys, job, f"replay.redis_url='{url}'")

    assert f"no Redis answers at {place}" in err
    assert "secret" not in err


def test_too_few_held_out_prompts_are_a_note(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(job), "--set", "evaluation.prompts=100"]) == 0

    out = capsys.readouterr().out
    held_out = re.search(r"note: evaluation.prompts: is 100, and there are (\d+) held-out", out)
    assert held_out
    assert re.search(rf"completions per evaluation +{4 * int(held_out[1])}\n", out)


def test_run_refuses_a_run_that_validate_refuses(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(job), "--set", "rollout.group_size=1"]) == 2

    assert "every advantage would be 0" in capsys.readouterr().err
    assert not (job.parent / "runs").exists()


@pytest.mark.parametrize(
    ("override", "complaint_of"),
    [
        ("model.path=models/a/none", "model.path: models/a/none (in {}) does not exist"),
        ("data.path=none.jsonl", "data: none.jsonl (in {}): no such file"),
        ("algorithm.reference.path=none", "algorithm.reference.path: none (in {}) has no config.json"),
    ],
)
def test_the_error_of_a_relative_path_has_the_folder_that_was_searched(
    job: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    override: str,
    complaint_of: str,
) -> None:
    monkeypatch.chdir(job.parent)
    assert complaint_of.format(job.parent) in complaint(capsys, job, override)


def test_a_missing_configuration_is_an_error_of_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", str(tmp_path / "none.yaml")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_configuration_after_an_option_of_several_values_is_recognized(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", "--set", "seed=3", str(job)]) == 0
    assert "is valid" in capsys.readouterr().out


def test_the_resolved_axes_are_printed(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["validate", str(job), "--set", "algorithm.preset=dapo", "algorithm.kl.coefficient=0.01"]) == 0
    )

    out = capsys.readouterr().out
    for axis, text in (
        ("preset", "dapo, with its own kl"),
        ("advantage", r"grpo \(ddof 1, epsilon 1e-06\)"),
        ("objective", r"ppo_clip \(anchor rollout, clip_low 0.2, clip_high 0.28, dual_clip null\)"),
        ("band of the ratio", r"\[0.8, 1.28\]"),
        ("correction", "none"),
        (
            "kl",
            "coefficient 0.01, estimator k3_unbiased, placement loss, cap 5, to the model that the run",
        ),
        ("entropy", "none"),
        ("aggregation", "token_mean"),
        # 0.8 × 4 tokens, rounded down
        ("shaping", r"dynamic_sampling .*; soft_overlong \(safe_len 3, max_len 4, factor 1, floor true\)"),
    ):
        assert re.search(rf"^  {axis} +{text}", out, re.MULTILINE), (axis, out)


def test_rewards_by_step_are_printed_with_the_advantage() -> None:
    config = parse_config({}, ["algorithm.preset=grpo", "algorithm.supervision=process"])
    assert dict(axis_rows(config))["advantage"] == "grpo (ddof 1, epsilon 1e-06), from rewards by step"


def test_a_trust_region_is_not_printed_as_a_band(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(job), "--set", "algorithm.preset=dppo_kl"]) == 0

    out = capsys.readouterr().out
    assert re.search(r"trust region +KL at most 0.05 nats, cap 5 on the ratio\n", out)
    assert "limit_low 0.05, limit_high 0.05" in out
    assert "band of the ratio" not in out


def test_top_logprobs_are_printed_with_their_size_and_refused_beyond_the_vocabulary(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", str(job), "--set", "algorithm.preset=dppo_tv"]) == 0
    assert "top logprobs" not in capsys.readouterr().out
    top = "algorithm.objective={kind: dppo, divergence: topk_tv, top_k: 3}"
    assert main(["validate", str(job), "--set", top]) == 0
    assert re.search(
        r"top logprobs +of 3 tokens, 24 bytes a sampled token; a group at most 1 MiB\n",
        capsys.readouterr().out,
    )
    settings = json.loads((job.parent / "model" / "config.json").read_text())
    size = settings["vocab_size"]
    assert main(["validate", str(job), "--set", top.replace("3}", f"{size}}}")]) == 0
    capsys.readouterr()
    more = complaint(capsys, job, top.replace("3}", f"{size + 1}}}"))
    assert f"algorithm.objective.top_k: is {size + 1}, and the model has {size} tokens" in more


def test_verbalized_sampling_that_cannot_work_is_a_note(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = ["--set", "evaluation.sampling=verbalized"]
    tiny = ["model.path=null", "model.tiny={}", "data={kind: addition}"]
    assert main(["validate", str(job), *wanted]) == 0
    small = capsys.readouterr().out
    assert main(["validate", str(job), *wanted, *tiny]) == 0
    character_model = capsys.readouterr().out
    large = make_model(tmp_path / "large", max_position_embeddings=500)
    assert main(["validate", str(job), *wanted, f"model.path={large}", "rollout.max_new_tokens=200"]) == 0

    assert "more than the model's context of 20" in small
    assert "note: rollout.max_new_tokens: is 4, and the form of 5 candidates" in small
    # 12+34= is 6 characters; the instruction, "5" in place of "{candidates}" and an empty line, are 171.
    assert "has 177 tokens, and with a completion of 4 that is more than" in character_model
    assert "the model's context of 128" in character_model
    assert "a tiny model has not learned" in character_model
    assert "note:" not in capsys.readouterr().out


def test_a_prompt_of_verbalized_sampling_has_to_fit_into_a_training_row(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = make_model(tmp_path / "large", max_position_embeddings=500)
    wanted = ["evaluation.sampling=verbalized", "rollout.sampling=verbalized", "rollout.max_new_tokens=200"]
    with_model = [*wanted, f"model.path={large}"]
    assert main(["validate", str(job), "--set", *with_model]) == 0
    assert "note:" not in capsys.readouterr().out
    err = complaint(capsys, job, *with_model, "learner.max_tokens_per_row=220")
    assert "learner.max_tokens_per_row: is 220, and a prompt with the instruction of rollout.sampling" in err
    longest = int(re.search(r"of 200 has (\d+) tokens: it would be left out of training", err)[1])
    assert main(["validate", str(job), "--set", *with_model, f"learner.max_tokens_per_row={longest}"]) == 0
    capsys.readouterr()
    small = complaint(capsys, job, *wanted, "rollout.max_new_tokens=4")
    assert "rollout.sampling: is verbalized: a prompt with its instruction has" in small
    assert main(["validate", str(job), "--set", *with_model, "rollout.max_new_tokens=4"]) == 0
    assert "candidates (rollout.candidates)" in capsys.readouterr().out


def test_the_translation_of_telescopes_keys_is_printed(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = "algorithm.telescope={algorithm: gspo, clip_low: 0.4, number_of_minibatches: 4}"
    assert main(["validate", str(job), "--set", keys]) == 0

    out = capsys.readouterr().out
    assert re.search(r"preset +telescope_gspo\n", out)
    assert "clip_low: 0.4 became clip_low 0.4 of the objective gspo" in out
    assert "number_of_minibatches: 4 became learner.minibatches 4" in out
    assert re.search(r"band of the ratio +\[0.6, 1.5\]\n", out)
    assert "note: algorithm.objective: gspo clips at a distance of 0.5 from 1" in out


@pytest.mark.parametrize("wanted", ["algorithm.preset=rspo", "learner.replay_experts=true"])
def test_settings_of_experts_are_refused_for_a_dense_model(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], wanted: str
) -> None:
    dense = complaint(capsys, job, wanted)
    experts = make_model(tmp_path / "experts", num_experts=8)

    assert "model.path: is a dense model: its config.json names no experts" in dense
    assert main(["validate", str(job), "--set", wanted, "--set", f"model.path={experts}"]) == 0


def test_the_error_names_a_missing_reference_model(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    err = complaint(capsys, job, "algorithm.kl.coefficient=0.1", "algorithm.reference.path=/no/model")

    assert "algorithm.reference.path: /no/model has no config.json" in err


def test_a_version_larger_than_the_memory_for_arriving_ones_is_noted(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = {"model.norm.weight": numpy.zeros((12, 1 << 16), numpy.float32)}
    save_file(weights, job.parent / "model" / "model.safetensors")

    def note(mib: str) -> bool:
        assert main(["validate", str(job), "--set", f"weights.staging_mib={mib}"]) == 0
        out = capsys.readouterr().out
        return f"weights.staging_mib: is {mib}, and a version has 3 MiB: engines pause while it" in out

    assert note("2")
    assert not note("3")
    assert not note("0"), "0 says that engines may pause"


def test_an_adapter_for_a_layer_that_the_model_lacks_is_an_error(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model(job.parent / "layers")
    layers = {"a.q_proj.weight": (4, 4), "a.up_proj.weight": (8, 4), "a.norm.weight": (4,)}
    head = {"lm_head.weight": (10, 4)}  # one row for each word of make_model
    tensors = {name: numpy.zeros(shape, numpy.float32) for name, shape in {**layers, **head}.items()}
    save_file(tensors, model / "model.safetensors")
    wanted = (f"model.path={model}", "learner.lora.target_modules=[q_proj, norm, lm_head, a.up_proj]")

    err = complaint(capsys, job, *wanted)
    assert "2 problems" in err
    for name in ("norm", "lm_head"):
        assert f"learner.lora.target_modules: names `{name}`, and the model has no such linear layer" in err
    assert "name some of q_proj, up_proj" in err
    tiny = ("model={tiny: {max_tokens: 64}}", "data={kind: addition}", "learner.lora.target_modules=[wq]")
    assert "names `wq`" in complaint(capsys, job, *tiny)
    capsys.readouterr()
    assert (
        main(["validate", str(job), "--set", "learner.lora.target_modules=[q_proj]"]) == 0
    )  # a file without a header is not checked


def test_the_error_of_a_missing_package_has_the_command_that_installs_it(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    puzzles.cache_clear()  # an earlier test may have cached the same puzzles
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    err = complaint(capsys, job, "data={kind: reasoning_gym, task: leg_counting}")
    assert (
        "data: kind is reasoning_gym, and the package reasoning_gym is not installed: "
        "pip install '.[reasoning-gym]' in a clone of Slipstream; or name other data"
    ) in err


def test_the_error_of_a_default_evaluation_without_its_reward_names_the_reward_to_set(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    err = complaint(capsys, job, "rewards=[{name: mine, kind: numeric_match}]")
    assert (
        "evaluation.reward: is `exact_match` by default, which is not among the rewards (mine); set it to "
        "`mine`, whose mean is then the accuracy"
    ) in err


def test_the_help_has_names_with_their_capitals(capsys: pytest.CaptureFixture[str]) -> None:
    for command, name in (("doctor", "GPUs"), ("export", "Hugging Face"), ("cluster", "Kubernetes")):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert name in " ".join(capsys.readouterr().out.split())


def test_a_revision_of_a_local_directory_is_an_error(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_model(job.parent / "here")
    err = complaint(capsys, job, f"model.path={model}", "model.revision=v9")
    assert "model.revision: is v9, and model.path is a directory, which has no revisions; leave it out" in err
