"""Problems of a configuration that the schema accepts, one per test case."""

from typing import Any

import pytest
from slipstream.config import ConfigError, parse_config
from slipstream.config.checks import Problem, check_config, derived_numbers
from slipstream.config.stage_runs import stage_runs


def problems(*overrides: str) -> list[Problem]:
    return check_config(parse_config({}, overrides))


def test_the_default_run_has_no_problem() -> None:
    assert problems() == []


@pytest.mark.parametrize(
    ("overrides", "key", "reason"),
    [
        (["rollout.top_p=0.9"], "rollout.top_p", "not truncated"),
        (["rollout.group_size=1"], "rollout.group_size", "every advantage would be 0"),
        (["rollout.group_size=1", "algorithm.preset=rloo"], "rollout.group_size", "`rloo`"),
        (["learner.minibatches=65"], "learner.minibatches", "only 64 groups"),
        (["staleness.max_staleness=0"], "staleness.max_staleness", "nearly every group"),
        (["learner.betas=[0.9, 1.0]"], "learner.betas", "below 1"),
        (["evaluation.reward=format"], "evaluation.reward", "not among the rewards"),
        (["rewards=[{name: exact_match}, {name: exact_match}]"], "rewards", "there 2 times"),
        (["rewards=[{name: exact_match, weight: 0}]"], "rewards", "nothing to learn"),
        (
            ["rewards=[{name: countdown}]", "evaluation.reward=countdown"],
            "rewards.0.name",
            "cannot judge answers of the data `addition`",
        ),
        (
            ["rewards=[{name: exact_match}, {name: format, pattern: '['}]"],
            "rewards.1.pattern",
            "not a usable regular expression",
        ),
        (["rollout.tensor_parallel=2", "learner.device=cpu"], "rollout.tensor_parallel", "on CPUs"),
        (["rollout.nodes=2"], "rollout.nodes", "does not divide rollout.tensor_parallel (1)"),
        (["rollout.nodes=2", "rollout.tensor_parallel=3"], "rollout.nodes", "does not divide"),
        (
            ["rollout.nodes=2", "rollout.tensor_parallel=2", "learner.lora={serve: adapter}"],
            "rollout.nodes",
            "a directory of one node",
        ),
        (["rollout.max_new_tokens=128"], "rollout.max_new_tokens", "no room for a prompt"),
        (["replay.redis_url=http://here:6379"], "replay.redis_url", "does not start with one of redis://"),
        (["replay.redis_password_file=p"], "replay.redis_password_file", "is not set"),
        (
            ["replay.redis_url=redis://a:b@h", "replay.redis_password_file=p"],
            "replay.redis_password_file",
            "has a password itself",
        ),
        (["replay.redis_url=redis://h", "replay.redis_username=u"], "replay.redis_username", "a password"),
        (["replay.redis_url=redis://h", "replay.redis_authority=ca"], "replay.redis_authority", "encrypted"),
        (["replay.address=127.0.0.1:99999"], "replay.address", "beyond 65535"),
        (
            ["replay.address=localhost:5000", "learner.address=localhost:5000"],
            "learner.address",
            "also that of replay.address",
        ),
        (
            ["rollout.address=localhost:5000", "rollout.workers=2"],
            "rollout.address",
            "2 workers here cannot share",
        ),
        (["verifier.address=0.0.0.0:50052"], "verifier.address", "0.0.0.0:50052 is beyond loopback"),
        (["learner.address=learner:50053"], "learner.address", "gRPC would speak plaintext there"),
        (["telemetry.port=9400", "weights.port=9401"], "telemetry.port", "also that of weights.port"),
        (["weights.host=0.0.0.0"], "weights.host", "stands for all addresses"),
        (["weights.host='::'"], "weights.host", "stands for all addresses"),
        (["rollout.host=0.0.0.0"], "rollout.host", "stands for all addresses"),
        (["rollout.host=10.0.0.7"], "rollout.host", "gRPC would speak plaintext there"),
        (["telemetry.port=9400", "learner.address=localhost:9404"], "telemetry.port", "also that of learner"),
        (["rollout.chunk_seconds=3"], "actor.silence_seconds", "a message every 3 s"),
        (["algorithm.objective.kind=pg"], "algorithm.objective", "has no ratio"),
        (["learner.lora={rank: 600, serve: adapter}"], "learner.lora.rank", "of rank 512 at most"),
        (
            ["learner.lora={rank: 600}", "model={tiny: {}, dtype: bfloat16}"],
            "learner.lora.rank",
            "of rank 512 at most",
        ),
        (
            ["learner.lora.rank=8", "algorithm.kl={coefficient: 0.1}", "algorithm.reference.kind=ema"],
            "algorithm.reference.kind",
            "the product of averaged factors is not the average",
        ),
        (["learner.replay_experts=true"], "learner.replay_experts", "the tiny model is dense"),
    ],
)
def test_an_impossible_combination_is_an_error(overrides: list[str], key: str, reason: str) -> None:
    all_problems = problems(*overrides)

    assert [(problem.key, problem.severity) for problem in all_problems] == [(key, "error")]
    assert reason in str(all_problems[0])
    assert all_problems[0].remedy


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["algorithm.objective={kind: ppo_clip, anchor: batch}"], "algorithm.objective.anchor"),
        (["staleness.max_staleness=1"], "staleness.max_staleness"),
        (["rollout.engine=emulated"], "rollout.engine"),
        (["learner.schedule.warmup_steps=201"], "learner.schedule.warmup_steps"),
        (["data.kind=countdown"], "rewards.0.name"),
        (["replay.redis_url=redis://h", "replay.redis_dir=x"], "replay.redis_dir"),
        (
            ["rewards=[{name: exact_match}, {name: a, kind: custom, function: 'a:b', timeout_seconds: 10}]"],
            "rewards.1.timeout_seconds",
        ),
        (["replay.redis_url=redis://u:secret@h"], "replay.redis_url"),
        (["actor.max_groups=31"], "actor.max_groups"),
        (["learner.groups_per_step=10"], "rollout.max_groups"),
        (["rollout.group_timeout_seconds=0.7"], "rollout.group_timeout_seconds"),
    ],
)
def test_a_doubtful_combination_is_a_note(overrides: list[str], key: str) -> None:
    assert [(problem.key, problem.severity) for problem in problems(*overrides)] == [(key, "note")]


@pytest.mark.parametrize("url", ["redis+tls://u:secret@h", "u:secret@h:6379/0"])
def test_a_mistaken_address_of_redis_is_not_shown_with_its_password(url: str) -> None:
    all_problems = problems(f"replay.redis_url={url}")
    assert all_problems
    assert "secret" not in "".join(map(str, all_problems))


def test_the_emulated_engine_stays_on_one_node() -> None:
    all_problems = problems("rollout.nodes=2", "rollout.tensor_parallel=2", "rollout.engine=emulated")
    (problem,) = [problem for problem in all_problems if problem.severity == "error"]
    assert problem.key == "rollout.nodes"
    assert "`emulated` runs on one node" in problem.reason


def test_the_emulated_engine_chooses_no_experts_to_replay() -> None:
    replay = ("learner.replay_experts=true", "model.tiny.experts=8")
    assert problems(*replay) == []
    errors = [p for p in problems(*replay, "rollout.engine=emulated") if p.severity == "error"]
    assert [(p.key, "chooses no experts" in p.reason) for p in errors] == [("learner.replay_experts", True)]


def test_a_tiny_mixture_needs_more_experts_than_a_token_uses() -> None:
    with pytest.raises(ConfigError, match="experts is 2, and a token goes through 2"):
        problems("model.tiny.experts=2")


def test_a_deadline_below_the_wait_of_a_rollout_is_no_problem() -> None:
    assert problems("rewards=[{name: exact_match}, {name: own, kind: custom, function: 'a:b'}]") == []


def test_a_group_that_hangs_for_longer_than_a_rollout_waits_is_named_with_both_numbers() -> None:
    all_problems = problems("rewards=[{name: exact_match}, {name: code_tests}]", "verifier.workers=2")
    assert "lets 8 answers that hang take 80 s, 2 at a time" in "".join(map(str, all_problems))
    assert "gives up after 40 s" in "".join(map(str, all_problems))
    assert {problem.severity for problem in all_problems} == {"note"}
    enough = ("verifier.timeout_seconds=30", "verifier.workers=2")
    assert problems("rewards=[{name: exact_match}, {name: code_tests}]", *enough) == []


def test_the_time_of_a_group_counts_all_conversations_of_an_agent() -> None:
    agent = "data={kind: addition, environment: {kind: program, command: [a], max_segments: 4, seconds: 100}}"
    longer = ("rollout.max_new_tokens=256", "model.tiny.max_tokens=512")
    (problem,) = problems(agent, *longer, "rollout.group_timeout_seconds=150")
    assert problem.key == "rollout.group_timeout_seconds"
    assert "in each of 4 conversations (data.environment.max_segments) and 100 s beside" in problem.reason
    assert problem.remedy.startswith("set it to 152 or more")  # 4 × 256 tokens, 20 a second, and 100 s
    assert problems(agent, *longer, "rollout.group_timeout_seconds=152") == []


def test_of_a_judge_that_hangs_the_remedy_is_more_calls_and_not_more_children() -> None:
    judge = "{name: judge, url: 'https://j.example/v1', model: m, concurrency: 2, timeout_seconds: 9}"
    (problem,) = problems(f"rewards=[{{name: exact_match}}, {judge}]")
    assert "2 at a time" in problem.reason
    assert problem.remedy.endswith("or rewards.1.concurrency")


def test_a_pattern_is_checked_as_the_verifier_compiles_it() -> None:
    assert problems("rewards=[{name: exact_match}, {name: format, pattern: '\\p{L}++'}]") == []


def test_synchronous_training_may_refuse_every_stale_token() -> None:
    assert problems("staleness.pipeline_depth=0", "staleness.max_staleness=0") == []


def test_an_anchor_at_the_batch_needs_a_correction_or_fresh_data() -> None:
    anchored = ("algorithm.objective={kind: cispo, anchor: batch}", "learner.minibatches=4")
    (note,) = problems(*anchored)
    assert (note.key, note.severity) == ("algorithm.objective.anchor", "note")
    assert problems(*anchored, "algorithm.correction={kind: tis}") == []
    assert problems(*anchored, "staleness={pipeline_depth: 0, max_staleness: 0}") == []


def test_adapters_need_nothing_but_a_rank_and_are_refused_nowhere_else() -> None:
    assert problems("learner.lora.rank=8") == []
    assert problems("learner.lora={rank: 600}", "algorithm.kl={coefficient: 0.1}") == []


def test_all_problems_are_found_at_once() -> None:
    all_problems = problems("rollout.top_p=0.9", "rollout.group_size=1", "evaluation.reward=format")

    assert len(all_problems) == 3


def test_derived_numbers_follow_by_hand() -> None:
    overrides = ["rollout.group_size=4", "learner.groups_per_step=10", "rollout.max_new_tokens=5"]
    numbers = derived_numbers(parse_config({}, [*overrides, "algorithm.preset=grpo"]), held_out_size=100)

    assert (numbers.groups_per_step, numbers.completions_per_step, numbers.tokens_per_step) == (10, 40, 200)
    assert numbers.admission_capacity == 30
    assert (numbers.mean_staleness, numbers.max_staleness) == (2, 8)
    assert numbers.clip_band == (0.8, 1.2)
    assert numbers.completions_in_flight == 128
    assert numbers.evaluation_completions == 400


def test_the_groups_of_all_actors_are_compared_with_the_places_of_all_rollouts() -> None:
    (note,) = problems("actor.max_groups=16", "actor.workers=3", "rollout.workers=2", "rollout.max_groups=25")
    assert "at most 48 groups" in note.reason
    assert "have 50 places" in note.reason
    assert (
        problems("actor.max_groups=16", "actor.workers=4", "rollout.workers=2", "rollout.max_groups=32") == []
    )
    assert problems("actor.max_groups=1", "rollout.workers=0") == []


def test_actors_with_fewer_groups_than_places_bound_the_completions_in_flight() -> None:
    config = parse_config({}, ["rollout.group_size=4", "actor.max_groups=5"])
    assert derived_numbers(config, held_out_size=100).completions_in_flight == 20


def test_addresses_beyond_loopback_are_right_with_tls_and_with_the_plaintext_flag() -> None:
    far = [
        f"{name}.address=10.0.0.1:{port}" for port, name in enumerate(("replay", "learner", "rollout"), 50051)
    ]
    tls = "rpc.tls={certificate: c, key: k, authority: a, trust_domain: d}"
    assert {problem.key for problem in problems(*far)} == {
        "replay.address",
        "learner.address",
        "rollout.address",
    }
    assert problems(*far, "rpc.plaintext=true") == problems(*far, tls) == []


def test_the_keys_of_encrypted_weights_do_not_travel_in_plaintext() -> None:
    (problem,) = problems("weights.encrypt=true", "rpc.plaintext=true")
    assert problem.key == "weights.encrypt"
    assert problems("weights.encrypt=true") == []


def test_length_is_not_punished_by_a_reward_and_by_the_shaping() -> None:
    length = "rewards=[{name: exact_match}, {name: length, safe_tokens: 8, max_tokens: 16}]"
    twice = problems(length, "algorithm.preset=dapo")
    assert any(p.key == "rewards.1" and "soft_overlong" in p.reason for p in twice)
    assert not any(p.key == "rewards.1" for p in problems(length, "algorithm.preset=grpo"))


def of_stage(*overrides: str, **stage: Any) -> list[Problem]:
    tree = {"stages": [{"name": "s", **stage}], "rollout": {"sampling": "verbalized"}}
    (stage_run,) = stage_runs(parse_config(tree, overrides))
    return [p for p in check_config(stage_run.config) if p.key in ("rollout.sampling", "rollout.candidates")]


def test_verbalized_training_that_is_measured_plainly_is_remarked_on() -> None:
    (note,) = problems("rollout.sampling=verbalized")
    assert (note.key, note.severity) == ("rollout.sampling", "note")
    assert "the accuracy is that of another prompt" in note.reason
    assert problems("rollout.sampling=verbalized", "evaluation.sampling=verbalized") == []


def test_a_stage_takes_no_more_candidates_than_a_group_has_answers() -> None:
    assert of_stage("rollout.group_size=5", kind="rejection_sampling") == []
    (problem,) = of_stage("rollout.group_size=4", kind="rejection_sampling")
    assert (problem.key, problem.severity) == ("rollout.candidates", "error")
    assert "is 5, and a group has 4 answers" in problem.reason
    assert of_stage("rollout.group_size=4", kind="rl") == problems("rollout.sampling=verbalized")
    with pytest.raises(ConfigError, match=r"rollout\.candidates"):
        parse_config({}, ["rollout.candidates=1"])


def test_self_play_is_against_what_the_policy_answers_to_the_prompt_itself() -> None:
    (problem,) = of_stage(kind="preference", ranked_by="demonstrations")
    assert (problem.key, problem.severity) == ("rollout.sampling", "error")
    assert of_stage(kind="preference") == []


def test_rewards_and_labels_by_step_are_of_a_whole_completion() -> None:
    """A candidate is a part of the generation that trains; its steps end nowhere among the tokens."""
    by_step = ("rewards=[{name: custom, function: 'a:b'}]", "algorithm.preset=grpo")
    wanted = (
        "rollout.sampling=verbalized",
        "evaluation.sampling=verbalized",
        "algorithm.supervision=process",
    )
    (problem,) = [p for p in problems(*by_step, *wanted) if p.key == "rollout.sampling"]
    assert (problem.severity, "`process`" in problem.reason) == ("error", True)
    assert not [p for p in problems(*by_step, *wanted[1:]) if p.key == "rollout.sampling"]
    (problem,) = of_stage(kind="step_labels")
    assert (problem.key, problem.severity) == ("rollout.sampling", "error")


@pytest.mark.parametrize(
    ("overrides", "notes"),
    [
        (["weights.patience_seconds=60"], 1),
        (["weights.timeout_seconds=1"], 1),
        (["weights.timeout_seconds=1", "weights.max_lag=0"], 0),
    ],
)
def test_a_patience_that_outlasts_the_deadline_is_noted(overrides: list[str], notes: int) -> None:
    severities = [p.severity for p in problems(*overrides) if p.key == "weights.patience_seconds"]
    assert severities == ["note"] * notes
