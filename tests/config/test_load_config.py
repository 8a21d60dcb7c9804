"""YAML and --set become a configuration, or one readable error."""

from pathlib import Path

import pytest
import yaml
from slipstream.config import ConfigError, WarmupConfig, apply_environment, load_config, parse_config
from slipstream.config.load import dump_config
from slipstream.config.schema_keys import place_of
from slipstream.config.unknown_keys import ordered_keys


def error_of(tree: dict[str, object], *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(tree, overrides)
    return str(caught.value)


def test_an_empty_file_is_the_default_run(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("")

    assert load_config(file) == parse_config({})


def test_an_unknown_key_suggests_the_nearest() -> None:
    assert "learner.stepps: unknown key; did you mean `steps`?" in error_of({"learner": {"stepps": 3}})
    assert "learnr: unknown key; did you mean `learner`?" in error_of({"learnr": {}})


def test_an_unknown_key_of_an_algorithm_suggests_the_nearest() -> None:
    tree = {"algorithm": {"objective": {"kind": "cispo", "clip_hgh": 3}}}

    assert "did you mean `clip_high`?" in error_of(tree)


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("learner.stepz=1", "`steps`"),
        ("learner.group_siz=4", "`rollout.group_size`"),
        ("learner.group_size=4", "`rollout.group_size`"),
        ("max_staleness=4", "`staleness.max_staleness`"),
        ("rollout.steps=4", "`learner.steps` or `warmup.steps` or `stages[].steps`"),
        ("clip_high=0.3", "`algorithm.objective.clip_high` or `algorithm.correction[].clip_high`"),
        ("rollout.max_new_token=4", "`max_new_tokens`"),
    ],
)
def test_an_unknown_key_is_answered_from_its_section_and_then_from_the_others(
    override: str, meant: str
) -> None:
    key = override.partition("=")[0]
    assert f"{key}: unknown key; did you mean {meant}?" in error_of({}, override)


def test_a_key_of_the_same_section_is_suggested_before_an_equal_one_of_another() -> None:
    assert "did you mean `steps` or `algorithm.entropy.step`?" in error_of({"learner": {"step": 3}})
    assert "did you mean `ranks` or `learner.lora.rank`?" in error_of({"learner": {"rank": 3}})


@pytest.mark.parametrize(
    ("tree", "meant"),
    [
        ({"algorithm": {"preset": False}}, "algorithm.preset: needs text, not false (YAML reads on, off, "),
        (
            {"algorithm": {"kl": "none"}},
            'kl: is a section, with keys cap, coefficient, estimator, placement, not "none"; it may be null',
        ),
        (
            {"learner": None},
            "learner: is a section, with keys activation_checkpointing, address, betas, checkpoint, …, "
            "not null; leave it out for the defaults",
        ),
        ({"data": "train.jsonl"}, "data: is a section, with keys kind, "),
        ({"rewards": {"name": "math"}}, "rewards: needs a list, as [a, b] or a line `- …` for each entry"),
        (
            {"learner": {"lora": {"target_modules": "q_proj"}}},
            "  learner.lora.target_modules: Input should be 'all-linear' (got 'q_proj'), or needs a list, as "
            '[a, b] or a line `- …` for each entry, not "q_proj"',
        ),
    ],
)
def test_a_value_of_the_wrong_shape_is_answered_with_the_one_that_is_needed(
    tree: dict[str, object], meant: str
) -> None:
    assert meant in error_of(tree)


def test_a_key_like_none_is_answered_with_the_keys_that_there_are() -> None:
    assert "qwertyuiop: unknown key; the keys of the file are actor, algorithm, " in error_of(
        {"qwertyuiop": 1}
    )
    message = error_of({"learner": {"qwertyuiop": 1}})
    assert message.endswith("unknown key; docs/configuration.md lists the keys of `learner`")


def tools(*of: dict[str, object]) -> dict[str, object]:
    return {"data": {"kind": "addition", "environment": {"kind": "chat_tools", "tools": list(of)}}}


@pytest.mark.parametrize(
    ("tree", "line"),
    [
        (
            tools({"kind": "function", "functon": "a:b"}),
            "data.environment.tools.0.functon: unknown key; did you mean `function`?",
        ),
        (
            tools({"kind": "python"}, {"kind": "pyton"}),
            "data.environment.tools.1.kind: is 'pyton', which is no kind; did you mean `python`? The kinds "
            "are function, python, mcp",
        ),
        (
            tools({"function": "a:b"}),
            "data.environment.tools.0: needs `kind` to say which one it is; set `kind` to one of function, "
            "python, mcp",
        ),
        (
            tools({"knd": "python"}),
            "data.environment.tools.0.knd: unknown key; did you mean `kind`? It is one of function, "
            "python, mcp",
        ),
        (
            {"data": {"kind": "addition", "environment": {"kind": "program"}}},
            "data.environment.command: is required, and missing; add it",
        ),
        (
            {"data": {"kind": "mixture", "of": [{"kind": "addition", "digit": 1}, {"kind": "countdown"}]}},
            "data.of.0.digit: unknown key; did you mean `digits`?",
        ),
        (
            {"data": {"kind": "mixture", "of": [{"kind": "addition", "length": 1}, {"kind": "countdown"}]}},
            "data.of.0.length: unknown key; only the kind `sort_digits` has it; the keys of `addition` are "
            "kind, digits, environment, evaluation_reward, name, share",
        ),
        (
            {"data": {"kind": "judging", "of": {"kind": "addition", "digits": 99}}},
            "data.of.digits: Input should be less than or equal to 12 (got 99)",
        ),
        (
            {"data": {"kind": "judging", "of": {"kind": "countdown"}}},
            "data.of.kind: is 'countdown', which is no kind; set `kind` to one of addition, sort_digits",
        ),
        ({"data": {"kind": "file", "pth": "rows.jsonl"}}, "data.pth: unknown key; did you mean `path`?"),
        (
            {"algorithm": {"correction": {"kind": "tis", "clp": 3}}},
            "algorithm.correction.clp: unknown key; did you mean `cap`?",
        ),
        (
            {"algorithm": {"correction": [{"kind": "tiss"}]}},
            "algorithm.correction.0.kind: is 'tiss', which is no kind; did you mean `tis`? The kinds are ",
        ),
        (
            {"rollout": {"vllm": {"limit_mm_per_prompt": {"image": "one"}}}},
            "rollout.vllm.limit_mm_per_prompt.image: ",
        ),
        (
            {"stages": [{"name": "a", "kind": "supervise"}]},
            "stages.0.kind: is 'supervise', which is no kind; did you mean `supervised`? The kinds are rl, ",
        ),
    ],
)
def test_one_slip_is_one_line_with_the_key_as_it_is_written(tree: dict[str, object], line: str) -> None:
    (problem,) = error_of(tree).splitlines()[1:]
    assert problem.strip().startswith(line)


def test_two_slips_in_a_section_are_two_lines() -> None:
    section = tools({"kind": "function", "functon": "a:b", "secnds": 1})
    keys = [line.strip().partition(":")[0] for line in error_of(section).splitlines()[1:]]
    assert keys == ["data.environment.tools.0.functon", "data.environment.tools.0.secnds"]


def test_every_key_is_found_in_its_section_and_suggested_there() -> None:
    """Whatever key gets one letter too many, that key is what is suggested."""
    for section in ("learner", "rollout", "staleness", "evaluation", "replay", "verifier"):
        for key in set(ordered_keys(place_of([section]))) - {"n"}:
            assert f"`{key}`?" in error_of({section: {f"{key}x": 1}}), key


def test_every_file_with_a_key_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("learner:\n  steps: 3\n  threads: 1\n  steps: 4\n")
    with pytest.raises(ConfigError, match=r"job.yaml: line 4: `steps` stands here again, after line 2"):
        load_config(file)
    file.write_text("rollout: {}\nlearner: {}\nrollout: {}\n")
    with pytest.raises(ConfigError, match="line 3: `rollout` stands here again"):
        load_config(file)
    assert "`steps` stands here again" in error_of({}, "learner={steps: 1, steps: 2}")


def test_a_merged_key_may_be_replaced(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("learner: &a {steps: 3}\nstaleness: {}\nwarmup: {<<: *a, steps: 4}\n")
    assert load_config(file).warmup == WarmupConfig(steps=4)


def test_a_relative_file_that_is_missing_is_named_with_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"^nowhere.yaml \(in {tmp_path}\): no such file"):
        load_config(Path("nowhere.yaml"))


def test_every_fault_is_named_at_once() -> None:
    message = error_of({"learner": {"steps": 0}, "rollout": {"group_size": "many"}, "seeds": 1})

    assert "learner.steps" in message
    assert "rollout.group_size" in message
    assert "seeds" in message


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("rollout.temperature=0", "rollout.temperature"),
        ("rollout.top_p=1.5", "rollout.top_p"),
        ("staleness.pipeline_depth=-1", "staleness.pipeline_depth"),
        ("learner.learning_rate=fast", "learner.learning_rate"),
        ("replay.address=nowhere", "replay.address"),
        ("rollout.max_groups=0", "rollout.max_groups"),
        ("algorithm.preset=grop", "algorithm"),
        ("data.kind=sums", "data"),
        ("name=a b", "name"),
    ],
)
def test_a_value_out_of_range_or_of_the_wrong_type_names_its_key(override: str, key: str) -> None:
    assert key in error_of({}, override)


def test_set_replaces_one_key_with_a_yaml_value() -> None:
    config = parse_config(
        {"learner": {"steps": 9}}, ["learner.steps=5", "warmup.steps=0", "model.tiny.layers=2"]
    )

    assert config.learner.steps == 5
    assert config.warmup is not None
    assert config.model.tiny is not None
    assert config.model.tiny.layers == 2


@pytest.mark.parametrize("key", ["rewards.1.weight", "rewards.exact_match.weight", "rewards.-1.weight"])
def test_set_of_a_place_that_a_list_does_not_have_is_explained(key: str) -> None:
    message = rf"--set {key}=2: .* is no place in a list of 1, which counts from 0"
    with pytest.raises(ConfigError, match=message):
        parse_config({"rewards": [{"name": "exact_match"}]}, [f"{key}=2"])


def test_set_without_an_equals_sign_is_explained() -> None:
    assert "write it as key=value" in error_of({}, "learner.steps")


def test_set_of_an_unknown_key_suggests_the_nearest() -> None:
    assert "did you mean `workers`?" in error_of({}, "rollout.worker=2")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: [1", "not valid YAML"),
        ("a: 2001-99-99", "not valid YAML"),
        ("- 1\n- 2", "top level"),
        ("learner: 5", "learner"),
    ],
)
def test_a_malformed_file_names_itself(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)

    with pytest.raises(ConfigError, match=r"job\.yaml") as caught:
        load_config(file)
    assert complaint in str(caught.value)


def test_a_missing_file_and_a_directory_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="is a directory"):
        load_config(tmp_path)


def test_a_later_file_is_laid_over_an_earlier_one_section_by_section(tmp_path: Path) -> None:
    run, cluster = tmp_path / "run.yaml", tmp_path / "cluster.yaml"
    run.write_text("model: {tiny: {}}\nlearner: {steps: 7, betas: [0.8, 0.9]}\nwarmup: {steps: 3}")
    cluster.write_text(
        "model: {tiny: null, path: /m}\nlearner: {address: 'l:1', betas: [0.5, 0.6]}\nwarmup: null"
    )

    config = load_config([run, cluster], ["learner.steps=9"])

    assert (config.learner.steps, config.learner.address) == (9, "l:1")
    assert config.learner.betas == (0.5, 0.6)
    assert (config.model.path, config.model.tiny, config.warmup) == (Path("/m"), None, None)


def test_an_error_in_files_laid_over_each_other_names_both(tmp_path: Path) -> None:
    run, cluster = tmp_path / "run.yaml", tmp_path / "cluster.yaml"
    run.write_text("learner: {steps: 7}")
    cluster.write_text("learner: {stepz: 7}")
    with pytest.raises(ConfigError, match=r"run\.yaml, .*cluster\.yaml: .*\n.*learner.stepz: unknown key"):
        load_config([run, cluster])


def test_a_dumped_configuration_reads_back_equal(tmp_path: Path) -> None:
    tree = {
        "model": {"path": "some/model"},
        "data": {"kind": "file", "path": "rows.jsonl"},
        "rewards": [{"name": "format", "pattern": r"\d+: 'x'"}, {"name": "exact_match", "weight": 0.5}],
        "algorithm": {"preset": "grpo", "objective": {"kind": "ppo_clip", "clip_low": None}},
        "run_dir": "runs/job-1",
    }
    config = parse_config(tree)
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(config))

    assert load_config(file) == config
    assert yaml.safe_load(dump_config(config))["algorithm"]["objective"]["clip_low"] is None


def test_the_environment_gives_the_addresses() -> None:
    config = apply_environment(parse_config({}), {"SLIPSTREAM_REPLAY_ADDRESS": "replay:50051", "OTHER": "1"})

    assert config.replay.address == "replay:50051"
