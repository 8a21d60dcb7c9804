"""The size of the rollouts' top logprobs, and the configurations that are refused because of it."""

import pytest
from slipstream.config import RunConfig, parse_config
from slipstream.config.checks import Problem, check_config, derived_numbers

TOP = "algorithm.objective={kind: dppo, divergence: topk_tv, top_k: 20}"


def configured(*overrides: str) -> RunConfig:
    return parse_config({}, ["algorithm.preset=dppo_tv", *overrides])


def problems(*overrides: str) -> list[Problem]:
    return [p for p in check_config(configured(*overrides)) if p.severity == "error"]


@pytest.mark.parametrize("divergence", ["topk_tv", "topk_kl"])
def test_a_run_may_have_a_divergence_over_the_top_tokens(divergence: str) -> None:
    objective = f"algorithm.objective={{kind: dppo, divergence: {divergence}}}"
    assert problems(objective) == []
    assert configured(objective).algorithm.resolved_top_logprobs() == 20


def test_nothing_is_asked_for_where_the_objective_does_not_read_it() -> None:
    assert parse_config({}, []).algorithm.resolved_top_logprobs() == 0
    assert configured().algorithm.resolved_top_logprobs() == 0


def test_the_bytes_of_a_group_follow_by_hand() -> None:
    sizes = ("rollout.group_size=8", "rollout.max_new_tokens=100")
    # id, logprob and mask: 9 bytes a token; 8 for each of 20 others
    numbers = derived_numbers(configured(*sizes, TOP), held_out_size=None)
    assert (numbers.top_logprobs, numbers.group_bytes) == (20, 8 * 100 * (9 + 160))
    plain = derived_numbers(configured(*sizes), held_out_size=None)
    assert (plain.top_logprobs, plain.group_bytes) == (0, 8 * 100 * 9)
    adaptive = "algorithm.shaping={adaptive_group: {largest: 32}}"
    larger = derived_numbers(configured(*sizes, TOP, adaptive), held_out_size=None)
    assert larger.group_bytes == 32 * 100 * (9 + 160)


def test_a_group_that_is_no_message_is_refused_with_what_it_takes() -> None:
    # 16 completions of 8192 tokens of 169 bytes: 21.125 MiB
    long = (
        TOP,
        "rollout.group_size=16",
        "rollout.max_new_tokens=8192",
        "model={path: somewhere}",
        "learner.max_tokens_per_row=10000",
    )
    assert problems(*long, "rpc.max_message_mib=22") == []
    (problem,) = problems(*long, "rpc.max_message_mib=21")
    assert problem.key == "algorithm.objective.top_k"
    assert "is 20: a group takes up to 22 MiB" in problem.reason
    assert "a message holds 21 (rpc.max_message_mib)" in problem.reason
    assert problem.remedy.endswith("or raise rpc.max_message_mib to 22")
    assert problems(*long[1:], "rpc.max_message_mib=4") == []


def test_no_message_limit_helps_beyond_two_gibibytes() -> None:
    (problem,) = problems(
        TOP,
        "rollout.group_size=64",
        "rollout.max_new_tokens=1000000",
        "model={path: somewhere}",
        "learner.max_tokens_per_row=2000000",
    )
    assert problem.remedy == "lower it, rollout.group_size or rollout.max_new_tokens"
