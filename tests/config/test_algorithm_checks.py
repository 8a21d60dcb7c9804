"""Combinations of an algorithm's parts for which validate reports an error or a note, one per test case."""

import pytest
from slipstream.algorithms import PRESETS
from slipstream.config import parse_config
from slipstream.config.checks import Problem, check_config

CORRECTED = "algorithm.correction={kind: tis}"
SCORED = "rewards=[{name: exact_match, weight: 0}, {name: language_consistency}]"
BY_STEP = (
    "rewards=[{name: exact_match}, {name: steps, kind: custom, function: 'a:b'}]",
    "algorithm.supervision=process",
)
FRESH = ("staleness.pipeline_depth=0", "staleness.max_staleness=0")


def problems(*overrides: str) -> list[Problem]:
    return check_config(parse_config({}, overrides))


@pytest.mark.parametrize(
    ("overrides", "key", "reason"),
    [
        ([CORRECTED], "algorithm.correction", "counted twice"),
        (["algorithm.objective.kind=pg"], "algorithm.objective", "has no ratio"),
        (
            ["algorithm.objective.kind=rspo", "learner.minibatches=2", *FRESH],
            "algorithm.objective",
            "is dense",
        ),
        (
            ["algorithm.objective={kind: dppo, divergence: topk_kl, top_k: 100}"],
            "algorithm.objective.top_k",
            "the model has 99 tokens",
        ),
        (["algorithm.preset=2grpo", "rollout.group_size=8"], "rollout.group_size", "groups of 2"),
        (
            ["algorithm.advantage={kind: ema}", "rollout.group_size=1"],
            "algorithm.shaping.dynamic_sampling",
            "1",
        ),
        (
            [
                "algorithm.preset=2grpo",
                "algorithm.aggregation=prompt_mean",
                "algorithm.shaping={adaptive_group: {}}",
                "data={kind: addition, digits: 1}",
            ],
            "algorithm.shaping.adaptive_group",
            "groups of 2",
        ),
        (
            ["algorithm.preset=gdpo", "algorithm.kl={coefficient: 0.1, placement: reward}"],
            "algorithm.kl.placement",
            "set placement: loss",
        ),
        *(
            (
                [
                    SCORED,
                    "algorithm.shaping=null",
                    f"algorithm.advantage.kind={kind}",
                    "algorithm.kl={coefficient: 0.1, placement: reward}",
                ],
                "algorithm.kl.placement",
                f"{kind} {how}",
            )
            for kind, how in (
                ("grpo", "divides by the standard deviation of each group"),
                ("gopo", "ranks the answers"),
                ("maxrl", "divides by the mean reward"),
            )
        ),
        *(
            (
                [SCORED, f"algorithm.advantage.kind={kind}", "algorithm.shaping={soft_overlong: {}}"],
                "algorithm.shaping.soft_overlong",
                "the factor cancels",
            )
            for kind in ("grpo", "gopo")
        ),
        (
            ["algorithm.objective.kind=pg", CORRECTED, *FRESH],
            "algorithm.correction",
            "pg has no ratio",
        ),
        (
            ["algorithm.preset=kl_cov", "algorithm.objective={kind: pg}", *FRESH],
            "algorithm.kl_cov",
            "no anchor",
        ),
        (["algorithm.objective.kind=pg", "learner.epochs=2", *FRESH], "learner.epochs", "pg has no ratio"),
        (
            ["algorithm.objective.kind=pg", "learner.minibatches=4", *FRESH],
            "learner.minibatches",
            "from the second minibatch on the policy has moved",
        ),
        *(
            (
                [
                    f"algorithm.{part}={{}}",
                    "algorithm.distillation={kind: advantage}",
                    "algorithm.shaping=null",
                    "teacher.path=/model",
                ],
                "algorithm.distillation.kind",
                f"got advantage with {part}",
            )
            for part in ("clip_cov", "kl_cov")
        ),
        *(
            (
                [
                    f"algorithm.preset={preset}",
                    "algorithm.kl={coefficient: 0.1, placement: reward}",
                    "algorithm.distillation={kind: reverse}",
                    "teacher.path=/model",
                    *FRESH,
                ],
                "algorithm.kl.placement",
                "the policy learns from the teacher alone",
            )
            for preset in ("dr_grpo", "ppo")
        ),
        (["algorithm.preset=dppo_tv", CORRECTED], "algorithm.correction", "always to the rollout policy"),
        (["algorithm.preset=gdpo", "rollout.group_size=1"], "rollout.group_size", "would be 0"),
        (["algorithm.aggregation=seq_len_weighted"], "algorithm.aggregation", "seq_mean_token_sum"),
        (["algorithm.max_tokens=8"], "algorithm.aggregation.max_tokens", "token_mean takes none"),
        (
            ["algorithm.shaping={soft_overlong: {safe_len: 16}}"],
            "algorithm.shaping.soft_overlong.max_len",
            "got 16, needs an integer of at least 17",
        ),
        (["learner.critic={}"], "learner.critic", "which the advantage batch_scaled does not read"),
        (
            ["algorithm.preset=ppo", "algorithm.objective={kind: gspo}", *FRESH],
            "algorithm.objective",
            "use ppo_clip, cispo or gspo_token",
        ),
        (
            ["algorithm.advantage={kind: optimal_token}", "algorithm.objective={kind: gspo}", *FRESH],
            "algorithm.objective",
            "optimal_token one advantage a token",
        ),
        *(
            (
                [*BY_STEP, f"algorithm.advantage={{kind: {kind}}}", "algorithm.shaping=null"],
                "algorithm.supervision",
                f"the advantage is {kind}: no source defines it",
            )
            for kind in ("dr_grpo", "batch_scaled", "opo", "ema", "mixed", "optimal_token")
        ),
        (
            [*BY_STEP, "algorithm.advantage={kind: reinforce_pp}", "algorithm.shaping=null"],
            "algorithm.supervision",
            "normalised over the tokens of the batch",
        ),
        (
            [*BY_STEP, "algorithm.advantage={kind: rloo, scale: group}", "algorithm.shaping=null"],
            "algorithm.supervision",
            "says nothing of single steps",
        ),
        (
            [*BY_STEP, "algorithm.preset=grpo", "algorithm.objective={kind: gmpo}"],
            "algorithm.objective",
            "rewards by step one advantage a step",
        ),
        (
            ["algorithm.preset=grpo", "algorithm.supervision=process"],
            "algorithm.supervision",
            "no reward with a weight scores steps",
        ),
        (
            ["algorithm.preset=ppo", "learner.critic.warmup_steps=5", "learner.steps=5"],
            "learner.critic.warmup_steps",
            "would never train",
        ),
        (
            ["algorithm.preset=ppo", "algorithm.shaping={dynamic_sampling: {}}", "rollout.group_size=1"],
            "algorithm.shaping.dynamic_sampling",
            "every group would be dropped",
        ),
    ],
)
def test_what_cannot_be_right_is_an_error(overrides: list[str], key: str, reason: str) -> None:
    all_problems = problems(*overrides)

    assert [(problem.key, problem.severity) for problem in all_problems] == [(key, "error")]
    assert reason in str(all_problems[0])
    assert all_problems[0].remedy


@pytest.mark.parametrize(
    ("overrides", "key", "reason"),
    [
        (["algorithm.preset=telescope_grpo"], "algorithm.objective", "the gradient is biased"),
        (["algorithm.preset=telescope_gspo"], "algorithm.objective", "hardly ever moves"),
        (
            ["algorithm.objective={kind: gspo_token, clip_low: 0.2, clip_high: 0.2}"],
            "algorithm.objective",
            "0.2",
        ),
        (
            ["algorithm.objective={kind: sapo, tau_pos: 1.1}"],
            "algorithm.objective.tau_neg",
            "1.05, below tau_pos 1.1",
        ),
        (
            ["algorithm.preset=telescope_grpo", "learner.epochs=2", *FRESH],
            "learner.epochs",
            "nothing would correct",
        ),
        (["algorithm.preset=gopo"], "algorithm.advantage", "tell right from wrong"),
        (["algorithm.reference={kind: ema}"], "algorithm.reference", "has no effect"),
        (
            ["algorithm.shaping={adaptive_group: {}}", "data={kind: addition, digits: 1}"],
            "algorithm.aggregation",
            "set prompt_mean",
        ),
        (
            ["algorithm.advantage={kind: reinforce_pp, group_mean: false}"],
            "algorithm.shaping.dynamic_sampling",
            "baseline is not the group's",
        ),
        (
            ["algorithm.preset=ppo", "algorithm.shaping={dynamic_sampling: {}}"],
            "algorithm.shaping.dynamic_sampling",
            "which the advantage gae learns from",
        ),
        (
            ["algorithm.shaping={goldilocks: {}}", "data={kind: addition, digits: 6}"],
            "algorithm.shaping",
            "hardly ever repeat",
        ),
        (
            ["algorithm.preset=maxrl", "algorithm.shaping={soft_overlong: {}}"],
            "algorithm.advantage",
            "below 0",
        ),
        (
            [
                "algorithm.preset=grpo",
                "rewards=[{name: exact_match}, {name: long, kind: length, safe_tokens: 2, max_tokens: 4}]",
            ],
            "algorithm.advantage",
            "the weight of long cancels",
        ),
        (
            ["algorithm.preset=decoupled_ppo", "algorithm.correction={kind: opsm}"],
            "algorithm.objective.anchor",
            "every ratio is exactly 1",
        ),
        (["algorithm.preset=decoupled_ppo"], "algorithm.objective", "its band does nothing"),
        (
            [
                "algorithm.objective={kind: cispo, anchor: batch}",
                "algorithm.correction={kind: tis}",
                "algorithm.kl_cov={}",
            ],
            "algorithm.kl_cov",
            "nothing to hold tokens back from",
        ),
        (["algorithm.entropy={coefficient: 0.01, step: 0.1}"], "algorithm.entropy.step", "without a target"),
        (["algorithm.entropy={coefficient: 0.01, largest: 1}"], "algorithm.entropy.largest", "a target"),
        (["algorithm.shaping={difficulty: {decay: 0.5}}"], "algorithm.shaping.difficulty", "none is on"),
        (
            [
                "algorithm.objective={kind: ppo_clip, anchor: batch}",
                "algorithm.correction={kind: geometric_rejection, mask_weight: one, cap: 3}",
                "learner.minibatches=2",
                *FRESH,
            ],
            "algorithm.correction.geometric_rejection.cap",
            "every token that trains weighs 1",
        ),
        (
            [
                "algorithm.objective={kind: ppo_clip, anchor: batch}",
                "algorithm.correction={kind: m2po, scope: all, clip_high: 0.9}",
                "learner.minibatches=2",
                *FRESH,
            ],
            "algorithm.correction.m2po.clip_high",
            "second moment alone",
        ),
        (
            [*BY_STEP, "algorithm.preset=grpo", "algorithm.shaping={dynamic_sampling: {}}"],
            "algorithm.shaping.dynamic_sampling",
            "may differ below them",
        ),
        (
            [
                "algorithm.preset=gdpo",
                "algorithm.shaping={dynamic_sampling: {}}",
                "rewards=[{name: exact_match}, {name: format, pattern: x}]",
            ],
            "algorithm.shaping.dynamic_sampling",
            "components that differ",
        ),
    ],
)
def test_what_is_doubtful_is_a_note(overrides: list[str], key: str, reason: str) -> None:
    all_problems = problems(*overrides)

    assert [(problem.key, problem.severity) for problem in all_problems] == [(key, "note")]
    assert reason in str(all_problems[0])


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.preset=decoupled_ppo", "learner.minibatches=4"],
        ["algorithm.preset=decoupled_ppo", "learner.epochs=2"],
        ["algorithm.preset=ppo", "learner.epochs=4", "learner.minibatches=4"],
        ["algorithm.advantage={kind: optimal_token}"],
        [*BY_STEP, "algorithm.preset=grpo"],
        [*BY_STEP, "algorithm.preset=rloo"],
        [*BY_STEP, "algorithm.preset=ppo"],
        [
            *BY_STEP,
            "algorithm.preset=reinforce_pp",
            "algorithm.advantage={kind: reinforce_pp, group_mean: false, weighting: token}",
        ],
        ["algorithm.clip_cov={share: 0.01}", "algorithm.kl_cov={}"],
        ["algorithm.preset=kl_cov", "algorithm.kl_cov=null"],
        ["algorithm.correction={kind: outlier_tokens}"],
        ["algorithm.preset=dppo_tv", "algorithm.correction={kind: outlier_tokens}"],
        [
            "algorithm.preset=decoupled_ppo",
            "learner.epochs=2",
            "algorithm.correction=[{kind: tis}, {kind: outlier_tokens}]",
        ],
        ["algorithm.preset=sapo"],
        ["algorithm.objective={kind: sapo, tau_pos: 1, tau_neg: 1}"],
        ["algorithm.preset=gspo", *FRESH],
        ["algorithm.preset=decoupled_gspo", "learner.minibatches=4"],
        ["algorithm.objective={kind: gspo, clip_low: null, clip_high: null}"],
        ["algorithm.objective.kind=pg", "staleness.pipeline_depth=0", "staleness.max_staleness=0"],
        ["algorithm.preset=telescope_grpo", "staleness.pipeline_depth=0", "staleness.max_staleness=0"],
        ["algorithm.advantage={kind: ema}", "algorithm.shaping=null", "rollout.group_size=1"],
        [
            "algorithm.preset=scalerl",
            "algorithm.shaping={adaptive_group: {}}",
            "data={kind: addition, digits: 1}",
        ],
        ["algorithm.kl.coefficient=0.01", "algorithm.reference.kind=ema"],
        ["algorithm.token_weight=one_minus_ref", "algorithm.reference.path=x"],
        ["evaluation.sampling=verbalized"],
        ["evaluation.sampling=verbalized", "rollout.sampling=verbalized"],
        ["algorithm.entropy={coefficient: 0.01, target: 0.5, step: 0.1}"],
        ["algorithm.shaping={difficulty: {decay: 0.5}, goldilocks: {}}", "data={kind: addition, digits: 1}"],
        ["algorithm.preset=m2po", "algorithm.correction={kind: m2po, clip_high: 0.9}"],
        ["algorithm.preset=gdpo", "algorithm.shaping={dynamic_sampling: {}}"],
        ["algorithm.preset=ppo", "rollout.group_size=1"],
        ["algorithm.preset=ppo", "algorithm.objective={kind: gspo_token}", *FRESH],
        ["algorithm.preset=ppo", "algorithm.kl={coefficient: 0.1, placement: reward}"],
        ["algorithm.preset=ppo", "learner.critic={kind: model, warmup_steps: 4}", "learner.steps=5"],
        ["algorithm.preset=gdpo", "algorithm.kl={coefficient: 0.1}"],
        ["algorithm.preset=rloo", "algorithm.kl={coefficient: 0.1, placement: reward}"],
        ["algorithm.preset=dapo"],
        ["algorithm.preset=dr_grpo", "algorithm.shaping={soft_overlong: {}}"],
    ],
)
def test_what_is_right_is_not_remarked_on(overrides: list[str]) -> None:
    assert problems(*overrides) == []


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_can_run_rspo_on_a_mixture_of_experts(name: str) -> None:
    mixture = ["model.tiny.experts=8"] if name == "rspo" else []
    assert [p for p in problems(f"algorithm.preset={name}", *mixture) if p.severity == "error"] == []


def test_rspo_without_a_correction_leaves_stale_tokens_as_they_are_and_says_so() -> None:
    (note,) = problems("algorithm.preset=rspo", "model.tiny.experts=8", "learner.minibatches=4")
    assert (note.key, note.severity) == ("algorithm.objective.anchor", "note")
    assert "stale tokens are not corrected" in note.reason
