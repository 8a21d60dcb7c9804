"""The algorithm section: a preset, the keys that replace its parts, and Telescope's keys."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from slipstream.algorithms import PRESETS
from slipstream.algorithms.spec import DynamicSampling, Gspo, Kl, Shaping, SoftOverlong, Tis
from slipstream.config import ConfigError, CriticConfig, RunConfig, load_config, parse_config
from slipstream.config.load import dump_config


def config_of(*overrides: str, **tree: Any) -> RunConfig:
    return parse_config(tree, overrides)


def error_of(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        config_of(*overrides)
    return str(caught.value)


def loss_of(config: RunConfig) -> Any:
    return config.algorithm.resolved_loss(max_staleness=8, max_new_tokens=16)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_resolves_to_its_own_parts(name: str) -> None:
    config, preset = config_of(f"algorithm.preset={name}"), PRESETS[name]

    loss = loss_of(config)

    assert config.algorithm.resolved_advantage() == preset.advantage
    assert (loss.objective, loss.corrections, loss.kl) == (preset.objective, preset.corrections, preset.kl)
    assert loss.drift_penalty == preset.drift_penalty
    assert loss.aggregation.max_tokens == (16 if preset.aggregation == "token_sum_norm" else None)


def test_a_given_axis_replaces_the_presets_and_null_switches_it_off() -> None:
    replaced = config_of("algorithm.preset=decoupled_ppo", "algorithm.correction={kind: tis, cap: 3}")
    off = config_of("algorithm.preset=decoupled_ppo", "algorithm.correction=null")
    no_kl = config_of("algorithm.preset=r1", "algorithm.kl=null")
    other_kl = config_of("algorithm.preset=r1", "algorithm.kl.coefficient=0.2")

    assert loss_of(replaced).corrections == (Tis(cap=3),)
    assert loss_of(off).corrections == ()
    assert loss_of(no_kl).kl is None
    assert loss_of(other_kl).kl == Kl(coefficient=0.2)


def test_null_for_what_no_loss_is_without_is_the_presets() -> None:
    """Configurations written before this version say so."""
    config = config_of(
        algorithm={"preset": "sapo", "objective": None, "advantage": None, "aggregation": None}
    )
    assert loss_of(config) == loss_of(config_of("algorithm.preset=sapo"))


def test_the_punishment_of_length_starts_at_four_fifths_of_the_budget() -> None:
    algorithm = config_of("algorithm.preset=dapo").algorithm

    # DAPO: 0.8 × 20480 = 16384.
    assert algorithm.resolved_shaping(max_new_tokens=20480) == Shaping(
        dynamic_sampling=DynamicSampling(), soft_overlong=SoftOverlong(safe_len=16384, max_len=20480)
    )


def test_shaping_replaces_the_presets_as_a_whole() -> None:
    algorithm = config_of("algorithm.preset=dapo", "algorithm.shaping.duplicates=drop").algorithm
    off = config_of("algorithm.preset=dapo", "algorithm.shaping=null").algorithm

    assert algorithm.resolved_shaping(max_new_tokens=16) == Shaping(duplicates="drop")
    assert off.resolved_shaping(max_new_tokens=16) == Shaping()


@pytest.mark.parametrize(
    ("overrides", "size"),
    [
        ([], 8),
        (["rollout.group_size=null"], 8),
        (["algorithm.preset=2grpo"], 2),
        (["algorithm.preset=2grpo", "rollout.group_size=4"], 4),
        (["rollout.group_size=3"], 3),
        (["algorithm.telescope={algorithm: grpo, group_size: 5}"], 5),
        (["algorithm.telescope={algorithm: grpo}"], 8),
    ],
)
def test_the_group_size_is_the_one_given_or_the_presets_or_eight(overrides: list[str], size: int) -> None:
    assert config_of(*overrides).rollout.group_size == size


def test_a_preset_of_one_run_does_not_leak_into_the_next() -> None:
    assert config_of("algorithm.preset=2grpo").rollout.group_size == 2
    assert config_of().rollout.group_size == 8


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["algorithm.preset=2grpo"],
        ["algorithm.preset=decoupled_ppo", "algorithm.correction=null"],
        ["algorithm.preset=dapo", "algorithm.shaping=null"],
        ["algorithm.preset=r1"],
        ["algorithm.preset=ppo"],
        ["algorithm.preset=ppo", "learner.critic={kind: model, learning_rate: 0.5, clip_range: null}"],
        ["algorithm.preset=r1", "algorithm.kl=null", "algorithm.reference.path=some/model"],
        ["algorithm.kl.coefficient=0.1", "algorithm.reference.kind=ema"],
        ["algorithm.shaping={goldilocks: {}, buckets: {}}"],
        ["algorithm.telescope={algorithm: gspo, clip_low: 0.1, group_size: 4, number_of_minibatches: 2}"],
    ],
)
def test_a_dump_reads_back_to_the_same_algorithm(overrides: list[str]) -> None:
    config = config_of(*overrides)

    back = parse_config(yaml.safe_load(dump_config(config)))

    assert back == config
    assert loss_of(back) == loss_of(config)
    assert back.algorithm.resolved_shaping(max_new_tokens=16) == config.algorithm.resolved_shaping(
        max_new_tokens=16
    )
    assert dump_config(back) == dump_config(config)


def test_the_advantage_gae_brings_a_critic_and_no_other_has_one() -> None:
    assert config_of().learner.critic is None
    assert config_of("algorithm.preset=ppo").learner.critic == CriticConfig()
    nulled = config_of("algorithm.preset=grpo", "algorithm.advantage.kind=gae", "learner.critic=null")
    assert nulled.learner.critic == CriticConfig()
    critic = config_of("algorithm.preset=ppo", "learner.critic.kind=model").learner.critic
    assert critic == CriticConfig(kind="model")


def test_telescopes_keys_set_the_axes_the_group_size_and_the_minibatches() -> None:
    keys = "{algorithm: gspo, clip_low: 0.4, group_size: 4, number_of_minibatches: 2}"
    config = config_of(f"algorithm.telescope={keys}")

    assert loss_of(config).objective == Gspo(clip_low=0.4, clip_high=0.5)
    assert (config.rollout.group_size, config.learner.minibatches) == (4, 2)


@pytest.mark.parametrize("example", ["addition", "countdown", "sort_digits"])
def test_telescopes_keys_replace_the_preset_of_an_example_as_the_error_says(example: str) -> None:
    path = Path(__file__).parents[2] / "examples" / f"{example}.yaml"

    config = load_config(path, ["algorithm={telescope: {algorithm: gspo, clip_low: 0.4}}"])

    assert loss_of(config).objective == Gspo(clip_low=0.4, clip_high=0.5)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.preset=grop"], "did you mean 'grpo'"),
        (["algorithm.telescope={algorithm: gspo}", "algorithm.preset=grpo"], "preset would contradict it"),
        (["algorithm.telescope={algorithm: gspo}", "algorithm.kl.coefficient=1"], "kl would contradict it"),
        (["algorithm.preset=grpo", "algorithm.telescope={}"], r"--set 'algorithm=\{telescope: \{...\}\}'"),
        (["algorithm.advantage={kind: gae, lam: 2}"], "gae.lam: got 2"),
        (["learner.critic={kind: model, loss_coefficient: 0.1}"], "loss_coefficient has no effect.*model"),
        (["learner.critic={path: x}"], "path has no effect.*head"),
        (["learner.critic={clip_rang: 1}"], "did you mean `clip_range`"),
        (["algorithm.advantage={kind: mixed, lam: 0.5, prior: 2}"], "mixed.lam: got 0.5.*one of the two"),
        (
            ["algorithm.telescope={group_size: 4}", "rollout.group_size=8"],
            "rollout.group_size: is 8, and algorithm.telescope says 4",
        ),
        (
            ["algorithm.telescope={number_of_minibatches: 4}", "learner.minibatches=2"],
            "learner.minibatches: is 2, and algorithm.telescope says 4",
        ),
        (["algorithm.telescope={algorithm: cispo, use_ppo_clip: true}"], "bounds its ratio itself"),
        (["algorithm.telescope={clip_lo: 1}"], "did you mean 'clip_low'"),
        (["algorithm.objective.kind=cipso"], "kind: is 'cipso', which is no kind; did you mean `cispo`"),
        (["algorithm.objective.clip_low=0.1"], "algorithm.objective: needs `kind`"),
        (["algorithm.objective={kind: cispo, dual_clip: 3}"], "dual_clip belongs to is, ppo_clip"),
        (["algorithm.objective={kind: sapo, clip_low: 0.2}"], "sapo has a soft gate"),
        (["algorithm.correction={kind: tis, capp: 3}"], "algorithm.correction.capp: .*`cap`"),
        (["algorithm.kl={coefficient: 0.1, estimator: k1}"], "expected gradient is 0"),
        (["algorithm.kl={}"], "algorithm.kl.coefficient: is required, and missing"),
        (["algorithm.shaping.soft_overlon={}"], "did you mean `soft_overlong`"),
        (["algorithm.objective={kind: rspo, anchor: rollout}"], "algorithm.objective.anchor"),
        (["algorithm.reference={kind: ema, path: x}"], "path has no effect"),
        (["algorithm.reference={decay: 0.9}"], "decay has no effect"),
        (["evaluation.candidates=1"], "evaluation.candidates"),
    ],
)
def test_a_section_that_means_nothing_is_refused_readably(overrides: list[str], message: str) -> None:
    text = error_of(*overrides)

    assert re.search(message, text), text
    assert "Value error" not in text
