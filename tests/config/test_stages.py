"""The stages of a run: one complete configuration for each, and the errors for wrong stages."""

from typing import Any

import pytest
from slipstream.config import ConfigError, apply_environment, parse_config
from slipstream.config.load import dump_config, given_tree
from slipstream.config.stage_runs import stage_runs
from slipstream.config.stages import PreferenceStage, RejectionSamplingStage


def stages(*stage_trees: dict[str, Any], **tree: Any) -> dict[str, Any]:
    named = [{"name": f"s{place}", **stage} for place, stage in enumerate(stage_trees)]
    return {"stages": named, **tree}


MIX = {"data": {"kind": "sort_digits"}}
JUDGED = {"kind": "preference", "ranked_by": "model", "judge_prompt": "{prompt} {answer}?"}


def test_a_stage_has_the_keys_of_the_run_and_its_own_in_their_places() -> None:
    config = parse_config(
        stages(
            {"kind": "rl", "set": {"learner.steps": 7, "data": {"kind": "sort_digits", "length": 3}}},
            {"kind": "rl"},
            learner={"steps": 5, "groups_per_step": 9},
            data={"kind": "addition", "digits": 3},
        )
    )
    first, second = (stage_run.config for stage_run in stage_runs(config))
    assert (first.learner.steps, first.learner.groups_per_step) == (7, 9)
    assert first.data.model_dump() == {"kind": "sort_digits", "length": 3}
    assert second.data.model_dump() == {"kind": "addition", "digits": 3}
    assert first.stages == second.stages == ()


def test_a_section_is_merged_and_a_choice_is_replaced() -> None:
    own = {"learner": {"steps": 7, "schedule": {"kind": "cosine"}}, "algorithm": {"preset": "grpo"}}
    config = parse_config(
        stages(
            {"kind": "rl", "set": own},
            learner={"groups_per_step": 9, "schedule": {"warmup_steps": 3}},
            algorithm={"preset": "dapo", "aggregation": "seq_mean_token_sum"},
        )
    )
    made = stage_runs(config)[0].config
    assert (made.learner.steps, made.learner.groups_per_step) == (7, 9)
    assert made.learner.schedule.warmup_steps == 0
    assert made.algorithm.resolved_aggregation() == "seq_mean_token_mean"


def test_the_command_line_reaches_into_a_stage() -> None:
    tree = stages({"kind": "supervised"}, {"kind": "rl", "set": {"learner.steps": 40}})
    config = parse_config(tree, ["stages.0.steps=5", "stages.1.set.learner.steps=3"])
    first, second = stage_runs(config)
    assert first.config.warmup is not None
    assert first.config.warmup.steps == 5
    assert second.config.learner.steps == 3
    with pytest.raises(ConfigError, match="stages"):
        parse_config(tree, ["stages.2.steps=5"])


def test_a_sampled_round_is_one_synchronous_step_that_filters_nothing() -> None:
    config = parse_config(
        stages(
            {"kind": "preference", "groups": 24, "rounds": 3},
            algorithm={"preset": "dapo"},
            learner={"minibatches": 4},
        )
    )
    (stage_run,) = stage_runs(config)
    made = stage_run.config
    assert (made.learner.steps, made.learner.groups_per_step, made.learner.minibatches) == (3, 24, 1)
    assert (made.staleness.pipeline_depth, made.staleness.max_staleness) == (0, 3)
    assert made.algorithm.declared_shaping().dynamic_sampling is None
    assert [stage.kind for stage in made.stages] == ["preference"]


def test_a_supervised_stage_is_a_cold_start_of_its_own() -> None:
    config = parse_config(
        stages({"kind": "supervised", "steps": 3, "label_smoothing": 0.1}, warmup={"steps": 9})
    )
    (stage_run,) = stage_runs(config)
    assert stage_run.config.warmup is not None
    assert (stage_run.config.warmup.steps, stage_run.config.warmup.label_smoothing) == (3, 0.1)
    assert config.warmup is not None
    assert config.warmup.steps == 9


def test_another_algorithm_in_a_stage_sets_its_own_group_size_even_behind_the_environment() -> None:
    # GRPO with two completions a prompt is what the preset is; 8 is what a run without it has.
    tree = stages({"kind": "rl", "set": {"algorithm": {"preset": "2grpo"}}}, {"kind": "rl"})
    config = apply_environment(parse_config(tree), {"SLIPSTREAM_RUN_DIR": "/r"})
    assert [stage_run.config.rollout.group_size for stage_run in stage_runs(config)] == [2, 8]
    back = apply_environment(
        parse_config(
            stages({"kind": "rl", "set": {"algorithm": {"preset": "grpo"}}}, algorithm={"preset": "2grpo"})
        )
    )
    assert back.rollout.group_size == 2
    assert stage_runs(back)[0].config.rollout.group_size == 8


def test_a_configuration_with_stages_reads_back_from_its_dump_and_from_what_was_given() -> None:
    config = parse_config(stages({"kind": "rl", "set": {"learner.steps": 3}}, JUDGED, seed=4))
    import yaml

    assert parse_config(yaml.safe_load(dump_config(config))) == config
    assert parse_config(given_tree(config)) == config


def test_folders_count_from_one() -> None:
    config = parse_config(stages({"kind": "rl"}, {"kind": "rl"}))
    assert [stage_run.folder for stage_run in stage_runs(config)] == ["01_s0", "02_s1"]


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        (
            stages({"kind": "sft"}),
            "stages.0.kind: is 'sft', which is no kind; set `kind` to one of rl, supervised",
        ),
        (
            {"stages": [{"name": "a", "kind": "rl"}, {"name": "a", "kind": "rl"}]},
            "stages[1] has the name `a`, which stages[0] has",
        ),
        (stages({"kind": "distillation"}), "stages.0.teacher: is required, and missing"),
        (
            stages({"kind": "rl", "epoch": 2}),
            "stages.0.epoch: unknown key; did you mean `learner.epochs`?",
        ),
        (stages({**JUDGED, "judge_prompt": "is {answer} right?"}), "judge_prompt needs {prompt}"),
        (
            stages({"kind": "preference", "judge_prompt": "{prompt}{answer}"}),
            "judge_prompt has no effect unless",
        ),
        (stages({"kind": "rejection_sampling", "keep": "best"}), "keep_per_prompt does not say how many"),
        (stages({"kind": "rejection_sampling", "least_reward": None}), "nothing is selected by reward"),
        (stages({**JUDGED, "judge_answers": ["y", "y"]}), "judge_answers are equal"),
        (stages({"kind": "preference", "beta": 0}), "stages.0.beta"),
        *(
            (stages({"kind": "rejection_sampling", "mix": {**MIX, "share": share}}), "mix.share")
            for share in (0, 1, -0.5, "half")
        ),
        (
            stages({"kind": "rejection_sampling", "mix": {"share": 0.5}}),
            "stages.0.mix.data: is required, and missing",
        ),
        (stages({"kind": "preference", "mix": {**MIX, "share": 0.5}}), "mix: unknown key"),
        (stages({"kind": "supervised", "mix": {**MIX, "share": 0.5}}), "mix: unknown key"),
        (stages({"kind": "preference", "least_distance": 1.2}), "stages.0.least_distance"),
        (stages({"kind": "preference", "least_distance": -0.1}), "stages.0.least_distance"),
        (
            stages({"kind": "preference", "ranked_by": "demonstrations", "least_distance": 0}),
            "least_distance is 0, which has no effect with ranked_by `demonstrations`",
        ),
        (stages({"kind": "rejection_sampling", "least_distance": 0.5}), "least_distance: unknown key"),
    ],
)
def test_a_stage_that_cannot_be_is_named_with_its_key(tree: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(tree)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("stage", "says"),
    [
        (
            {"kind": "rl", "set": {"learner.groups_per_stp": 3}},
            "stages[0].set: the configuration is not valid",
        ),
        (
            {"kind": "rl", "set": {"learner.groups_per_stp": 3}},
            "learner.groups_per_stp: unknown key; did you mean `groups_per_step`?",
        ),
        ({"kind": "rl", "set": {"model.path": "/m"}}, "`model.path` cannot be set in a stage of the kind rl"),
        ({"kind": "supervised", "set": {"learner.steps": 3}}, "`learner.steps` cannot be set"),
        (
            {"kind": "step_labels", "set": {"algorithm.supervision": "process"}},
            "`algorithm.supervision` cannot be set in a stage of the kind step_labels",
        ),
        (
            {"kind": "rejection_sampling", "set": {"algorithm.preset": "grpo"}},
            "`algorithm.preset` cannot be set",
        ),
        ({"kind": "supervised", "set": {"verifier.retries": 3}}, "`verifier.retries` cannot be set"),
        ({"kind": "preference", "set": {"learner": {"steps": 2}}}, "`learner.steps` cannot be set"),
    ],
)
def test_what_a_stage_sets_in_vain_or_wrongly_is_named_with_the_stage(
    stage: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        stage_runs(parse_config(stages(stage)))
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("share", "answers", "demonstrations"),
    [(0.25, 3, 1), (0.25, 600, 200), (0.5, 7, 7), (0.9, 1, 9), (0.25, 1, 1), (0.3, 10, 4)],
)
def test_the_share_of_a_mix_is_that_of_all_sequences(share: float, answers: int, demonstrations: int) -> None:
    (stage,) = parse_config(stages({"kind": "rejection_sampling", "mix": {**MIX, "share": share}})).stages
    assert isinstance(stage, RejectionSamplingStage)
    assert stage.mix is not None
    assert stage.mix.beside(answers) == demonstrations


def test_nobody_judges_by_default() -> None:
    config = parse_config(stages({"kind": "preference"}))
    (stage,) = config.stages
    assert isinstance(stage, PreferenceStage)
    assert (stage.ranked_by, stage.beta) == ("verifier", 0.1)


@pytest.mark.parametrize(
    ("model", "batch_size", "rate"), [({"tiny": {}}, 128, 1e-3), ({"path": "/m"}, 16, 1e-5)]
)
def test_a_supervised_stage_has_the_defaults_of_the_model_that_the_run_begins_with(
    model: dict[str, Any], batch_size: int, rate: float
) -> None:
    (only,) = stage_runs(parse_config({**stages({"kind": "supervised"}), "model": model}))
    assert only.config.warmup is not None
    assert (only.config.warmup.batch_size, only.config.warmup.learning_rate) == (batch_size, rate)
