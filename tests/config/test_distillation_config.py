"""Distillation in the configuration: its keys, its teacher, refused combinations, and stages."""

from typing import Any

import pytest
from slipstream.algorithms.spec import Distillation
from slipstream.config import ConfigError, RunConfig, apply_environment, parse_config
from slipstream.config.address_checks import fixed_ports
from slipstream.config.checks import Problem, check_config
from slipstream.config.distillation_checks import answer_bytes, question_bytes
from slipstream.config.load import dump_config
from slipstream.config.stage_runs import stage_runs

TEACHER = "teacher.path=t"
DISTILS = "algorithm.distillation={}"


def problems(*overrides: str, severity: str = "error") -> list[Problem]:
    all_problems = check_config(parse_config({}, overrides))
    return [problem for problem in all_problems if problem.severity == severity]


def test_the_axis_reaches_the_loss_and_a_dump_reads_back() -> None:
    config = parse_config({}, ["algorithm.distillation={kind: mixed, forward_share: 0.2}", TEACHER])
    loss = config.algorithm.resolved_loss(max_staleness=8, max_new_tokens=8)
    assert loss.distillation == Distillation(kind="mixed", forward_share=0.2)
    assert config.algorithm.resolved_distillation() == loss.distillation
    import yaml

    assert parse_config(yaml.safe_load(dump_config(config))) == config


def test_there_is_none_unless_it_is_given_and_null_is_none() -> None:
    for overrides in ([], ["algorithm.distillation=null"]):
        algorithm = parse_config({}, overrides).algorithm
        assert algorithm.resolved_distillation() is None
        assert algorithm.resolved_loss(max_staleness=8, max_new_tokens=8).distillation is None


def test_the_environment_says_where_the_teacher_is() -> None:
    config = apply_environment(RunConfig(), {"SLIPSTREAM_TEACHER_ADDRESS": "teacher:7005"})
    assert config.teacher.address == "teacher:7005"


def test_a_distillation_needs_a_teacher() -> None:
    (problem,) = problems(DISTILS)
    assert problem.key == "teacher.path"
    assert "learns from a teacher" in problem.reason
    assert problems(DISTILS, TEACHER) == []


def test_a_teacher_that_nothing_learns_from_is_remarked_on() -> None:
    assert [note.key for note in problems(TEACHER, severity="note")] == ["teacher.path"]
    assert problems(DISTILS, TEACHER, "algorithm.shaping=null", severity="note") == []


def test_a_filter_by_rewards_that_do_not_train_is_remarked_on() -> None:
    (note,) = problems(DISTILS, TEACHER, severity="note")
    assert note.key == "algorithm.shaping.dynamic_sampling"
    weighed = "algorithm.distillation={reward_weight: 1.0}"
    assert problems(weighed, TEACHER, severity="note") == []


def test_a_group_of_one_is_enough_for_a_teacher_alone() -> None:
    one = ("rollout.group_size=1", "algorithm.shaping=null", TEACHER)
    assert problems(DISTILS, *one) == []
    (problem,) = problems("algorithm.distillation={reward_weight: 0.5}", *one)
    assert problem.key == "rollout.group_size"


@pytest.mark.parametrize(
    ("overrides", "key", "reason"),
    [
        (["algorithm.preset=gspo", DISTILS], "algorithm.distillation.kind", "use reverse"),
        (
            ["algorithm={preset: m2po, distillation: {}}"],
            "algorithm.distillation.kind",
            "m2po of the scope harmful",
        ),
    ],
)
def test_combinations_that_are_wrong_are_refused_with_their_key(
    overrides: list[str], key: str, reason: str
) -> None:
    (problem,) = problems(*overrides, TEACHER)
    assert problem.key == key
    assert reason in f"{problem.reason}; {problem.remedy}"


@pytest.mark.parametrize(("kind", "top_k"), [("reverse", 100), ("forward", 1000), ("mixed", 100)])
def test_more_tokens_than_the_tiny_model_has_are_refused(kind: str, top_k: int) -> None:
    def found(number: int) -> list[Problem]:
        distils = f"algorithm.distillation={{kind: {kind}, top_k: {number}}}"
        return problems(distils, "model={tiny: {}}", TEACHER)

    (problem,) = found(top_k)
    assert problem.key == "algorithm.distillation.top_k"
    assert problem.reason == f"is {top_k}, and the model has 99 tokens"
    assert problem.remedy == "lower it; the default is 16"
    assert found(99) == []


def test_an_answer_of_the_teacher_that_is_no_message_is_refused_with_what_it_takes() -> None:
    long = ("rollout.group_size=16", "rollout.max_new_tokens=8192", "learner.max_tokens_per_row=10000")
    run = (*long, "model={path: somewhere}", TEACHER)
    reverse = "algorithm.distillation={kind: reverse, top_k: 20}"
    # 16 completions of 8192 tokens of 4 + 160 bytes, and 32 bytes for each completion: 20.5 MiB
    assert answer_bytes(parse_config({}, [*run, reverse])) == 16 * (8192 * 164 + 32)
    assert problems(*run, reverse, "rpc.max_message_mib=21") == []
    (problem,) = problems(*run, reverse, "rpc.max_message_mib=20")
    assert problem.key == "algorithm.distillation.top_k"
    assert "a group takes up to 21 MiB between the learner and the teacher" in problem.reason
    assert "a message holds 20 (rpc.max_message_mib)" in problem.reason
    assert problem.remedy.endswith("or raise rpc.max_message_mib to 21")
    # what is longer than a row of training is not asked about
    short = "learner.max_tokens_per_row=1024"
    assert answer_bytes(parse_config({}, [*run, reverse, short])) == 16 * (1024 * 164 + 32)


def test_a_question_that_is_no_message_is_refused() -> None:
    long = ("rollout.group_size=64", "rollout.max_new_tokens=20000", "learner.max_tokens_per_row=30000")
    run = (*long, "model={path: somewhere}", TEACHER, DISTILS)
    # 64 completions of 20000 tokens of 4 bytes, and a prompt of a few thousand: 5 MiB
    assert question_bytes(parse_config({}, run)) == 64 * (80_000 + 32) + 120_000
    (problem,) = problems(*run, "rpc.max_message_mib=4")
    assert problem.key == "algorithm.distillation"
    assert problem.remedy.startswith("lower rollout.group_size or rollout.max_new_tokens, or raise")
    assert problems(*run, "rpc.max_message_mib=5") == []


@pytest.mark.parametrize("wrong", ["{kind: reverse, tok_k: 3}", "{kind: sideways}", "{top_k: 3}"])
def test_a_wrong_setting_is_refused_by_the_schema(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.distillation"):
        parse_config({}, [f"algorithm.distillation={wrong}", TEACHER])


def test_its_port_and_its_metrics_page_are_among_those_that_are_fixed() -> None:
    fixed = ["teacher.address=127.0.0.1:7005", "telemetry.port=9100", TEACHER]
    without = fixed_ports(parse_config({}, fixed))
    with_it = fixed_ports(parse_config({}, [*fixed, DISTILS]))
    assert ("teacher.address", "127.0.0.1", 7005) in with_it
    assert len(with_it) == len(without) + 2
    assert not [row for row in without if row[0] == "teacher.address"]


def test_one_stage_may_distil_and_another_not() -> None:
    tree: dict[str, Any] = {
        "model": {"path": "m"},
        "stages": [
            {"name": "plain", "kind": "rl"},
            {
                "name": "taught",
                "kind": "rl",
                "set": {"algorithm": {"distillation": {"kind": "reverse"}}, "teacher": {"path": "t"}},
            },
            {"name": "select", "kind": "rejection_sampling"},
        ],
    }
    plain, taught, select = (stage.config for stage in stage_runs(parse_config(tree)))
    assert taught.algorithm.resolved_distillation() == Distillation(kind="reverse")
    assert str(taught.teacher.path) == "t"
    for other in (plain, select):
        assert other.algorithm.resolved_distillation() is None
        assert other.teacher.path is None
        assert not [p for p in check_config(other) if p.key.startswith("teacher")]


def test_a_stage_of_another_kind_takes_no_teacher_of_its_own() -> None:
    stage = {"name": "s", "kind": "rejection_sampling", "set": {"teacher.path": "t"}}
    with pytest.raises(ConfigError, match=r"`teacher\.path` cannot be set in a stage of the kind"):
        stage_runs(parse_config({"model": {"path": "m"}, "stages": [stage]}))
