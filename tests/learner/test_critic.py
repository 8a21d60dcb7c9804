"""A training step with a critic: values before tokens, advantages by hand, and the parameters that train."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from learner.fakes import TINY, completion, config_with, contrast, group, save
from learner.test_step import on_policy
from prometheus_client import generate_latest
from slipstream.algorithms.spec import Shaping
from slipstream.config import RunConfig
from slipstream.learner.batches.batch import make_sequences, sampled_tokens
from slipstream.learner.batches.packing import pack
from slipstream.learner.batches.rows import make_row
from slipstream.learner.checkpoints.checkpoint import State
from slipstream.learner.policy.checkpoint_form import CheckpointError
from slipstream.learner.policy.model import Policy
from slipstream.learner.policy.reference import Reference
from slipstream.learner.policy.tiny import make_tiny_model
from slipstream.learner.training.critic import Critic, load_critic, value_positions
from slipstream.learner.training.loss_metrics import CRITIC, observe_critic
from slipstream.learner.training.record import StepResult
from slipstream.learner.training.state import restore
from slipstream.learner.training.step import TrainingStep
from slipstream.records import FinishReason, Group
from slipstream.telemetry.metrics import Metrics

KINDS = ("head", "model")
PLAIN: dict[str, Any] = {
    "preset": "ppo",
    "advantage": {"kind": "gae", "whiten": False},
    "objective": {"kind": "is"},
}
GROUPS = [
    group(completion((5, 6, 7), reward=1.0), completion((8, 9), reward=0.0), prompt=(3, 4)),
    group(
        completion((10, 11, 12, 13), reward=0.25, mask=(1, 0, 1, 1)),
        completion((14,), reward=1.0),
        completion((6, 6), reward=0.5),
        prompt=(2,),
    ),
    group(completion((20, 21), reward=0.0), completion((22,), reward=1.0), prompt=(7, 8, 9)),
]


def configured(
    policy: Policy, *overrides: str, algorithm: dict[str, Any] = PLAIN, **critic: Any
) -> RunConfig:
    """Two groups of two, learning rate 0.01 for both, no bound on gradients, no clip of values."""
    base = ["learner.max_grad_norm=1e9", f"model={{path: {policy.source}}}"]
    settings = {"learning_rate": 0.01, "clip_range": None, **critic}
    learner = {"groups_per_step": 2, "device": "cpu", "learning_rate": 1e-2, "max_tokens_per_row": 64}
    return config_with(*base, *overrides, algorithm=algorithm, learner={**learner, "critic": settings})


def training_of(policy: Policy, config: RunConfig, **options: Any) -> TrainingStep:
    return TrainingStep(policy, config, critic=load_critic(config, policy), **options)


def critic_of(training: TrainingStep) -> Critic:
    assert training.critic is not None
    return training.critic


def train(training: TrainingStep, groups: Sequence[Group], *, version: int = 0) -> StepResult:
    return training.train(groups, version=version)


def unlike_zero(critic: Critic, *, seed: int = 5) -> Critic:
    """The critic with a head that says something."""
    torch.manual_seed(seed)
    with torch.no_grad():
        critic.module.head.weight.normal_(std=0.2)
        critic.module.head.bias.fill_(0.3)
    return critic


def constant(critic: Critic, value: float) -> None:
    """Let the critic say one value everywhere."""
    with torch.no_grad():
        critic.module.head.weight.zero_()
        critic.module.head.bias.fill_(value)


def gradients(
    training: TrainingStep, groups: Sequence[Group], *, version: int = 0
) -> dict[str, torch.Tensor]:
    """The gradients of policy and critic, flat, as the step would hand them to the optimizers."""
    collected: list[dict[str, torch.Tensor]] = []

    def look(change: Callable[[], None]) -> None:
        modules = {"policy": training.policy.model, "critic": critic_of(training).module}
        collected.append({name: flat(module, "grad") for name, module in modules.items()})

    training.train(groups, version=version, update=look)
    (gradient,) = collected
    return gradient


def flat(module: torch.nn.Module, what: str = "data") -> torch.Tensor:
    parts = [getattr(p, what) for p in module.parameters()]
    sizes = [p.numel() for p in module.parameters()]
    return torch.cat(
        [
            torch.zeros(size) if part is None else part.detach().flatten().clone()
            for part, size in zip(parts, sizes, strict=True)
        ]
    )


def loss_of(training: TrainingStep, advantages: list[list[float]], groups: Sequence[Group]) -> float:
    """- sum of ratio × A over the number of tokens, with mu -2 nats a token."""
    total, count = torch.zeros(()), 0
    answers = [(g, c) for g in groups for c in g.completions]
    for (g, answer), advantage in zip(answers, advantages, strict=True):
        tokens = torch.tensor([[*g.prompt_token_ids, *answer.token_ids]])
        with torch.no_grad():
            logprobs = training.policy.model(input_ids=tokens).logits[0].log_softmax(-1)
        for t, a in enumerate(advantage):
            place = len(g.prompt_token_ids) + t
            total = total - a * (logprobs[place - 1, tokens[0, place]] + 2).exp()
            count += 1
    return float(total / count)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_value_is_read_at_the_token_before_and_at_the_last_one_alone_or_packed(
    policy: Policy, kind: str, shared: bool
) -> None:
    config = configured(policy, kind=kind)
    training = training_of(policy, config)
    critic = unlike_zero(critic_of(training))
    sequences = make_sequences(GROUPS, Shaping())
    (packed,) = pack(sequences, max_tokens=1024, share_prompts=shared)
    row = make_row(packed, sampled_tokens(sequences), policy.device, share_prompts=shared)
    predicted = critic.values_without_gradient(row, training.forward(policy, row).hidden_NH)
    backbone = policy.model.base_model if kind == "head" else critic.module.backbone
    before, after = [], []
    for sequence in packed:
        tokens = torch.tensor([[*sequence.prompt_token_ids, *sequence.segment.token_ids]])
        with torch.no_grad():
            values = critic.module.head(backbone(input_ids=tokens).last_hidden_state[0]).squeeze(1)
        start = len(sequence.prompt_token_ids) - 1
        before += [float(values[start + t]) for t, m in enumerate(sequence.segment.mask) if m]
        after.append(float(values[-1]))
    assert predicted.before_T.tolist() == pytest.approx(before, abs=1e-5)
    assert predicted.after_B.tolist() == pytest.approx(after, abs=1e-5)
    assert len(set(before)) > 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_critic_predicts_0_so_the_advantage_is_the_reward_to_go(policy: Policy, kind: str) -> None:
    training = training_of(policy, configured(policy, kind=kind))
    expected = loss_of(training, [[1.0] * 3, [0.0] * 2], [contrast()])
    result = train(training, [contrast()])
    assert result.loss == pytest.approx(expected, rel=1e-4)
    # returns 1 three times and 0 twice, values 0: half of 3 over 5
    assert result.metrics["value_loss"] == pytest.approx(0.3)
    assert result.metrics["explained_variance"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_advantages_under_a_constant_critic_are_those_worked_by_hand(policy: Policy, kind: str) -> None:
    # V = 0.5, gamma = lam = 0.5. Right, 3 tokens: d3 = 1 - 0.5, d2 = d1 = 0.25 - 0.5;
    # A3 = 0.5, A2 = -0.25 + 0.25 * 0.5 = -0.125, A1 = -0.25 - 0.25 * 0.125 = -0.28125
    # Wrong, 2 tokens: A2 = -0.5, A1 = -0.25 - 0.125 = -0.375
    by_hand = [[-0.28125, -0.125, 0.5], [-0.375, -0.5]]
    spec = {"kind": "gae", "whiten": False, "gamma": 0.5, "lam": 0.5}
    training = training_of(policy, configured(policy, kind=kind, algorithm=PLAIN | {"advantage": spec}))
    constant(critic_of(training), 0.5)
    expected = loss_of(training, by_hand, [contrast()])
    result = train(training, [contrast()])
    assert result.loss == pytest.approx(expected, rel=1e-4)
    squares = sum(a * a for answer in by_hand for a in answer)  # A = R - V
    assert result.metrics["value_loss"] == pytest.approx(squares / 2 / 5)


def test_whitened_advantages_are_those_of_the_whole_batch_and_returns_are_not_whitened(
    policy: Policy,
) -> None:
    # V = 0, gamma = lam = 1: A = 1, 1, 1, 0, 0: mean 0.6, variance (3 * 0.16 + 2 * 0.36) / 4 = 0.3.
    # Two minibatches of the same group: ten tokens, and (6 * 0.16 + 4 * 0.36) / 9 = 0.266667.
    algorithm = PLAIN | {"advantage": {"kind": "gae"}}
    for groups, variance in (([contrast()], 0.3), ([contrast("a"), contrast("b")], 2.4 / 9)):
        config = configured(policy, f"learner.minibatches={len(groups)}", algorithm=algorithm)
        training = training_of(policy, config)
        right, wrong = (a / math.sqrt(variance) for a in (0.4, -0.6))
        expected = loss_of(training, [[right] * 3, [wrong] * 2], groups[:1])
        result = training.train(groups, version=0, update=lambda change: None)
        assert result.loss == pytest.approx(expected, rel=1e-4)
        assert result.metrics["value_loss"] == pytest.approx(0.3)
        assert result.updates == len(groups)


def test_a_perfect_critic_leaves_nothing_to_learn(policy: Policy) -> None:
    both_right = group(completion((5, 6, 7), reward=1.0), completion((8, 9), reward=1.0))
    training = training_of(policy, configured(policy))
    constant(critic_of(training), 1.0)
    computed_gradients = gradients(training, [both_right])
    assert float(computed_gradients["policy"].abs().max()) == 0
    assert float(computed_gradients["critic"].abs().max()) == 0


def test_the_value_after_a_truncated_completion_counts_only_with_bootstrap(policy: Policy) -> None:
    # gamma 0.5, V = 0.5, one token each, reward 1: A = 1 + 0.5 * 0.5 - 0.5 = 0.75 with a bootstrap, else 0.5
    cut = group(
        replace(completion((5,), reward=1.0), finish_reason=FinishReason.LENGTH), completion((8,), reward=1.0)
    )
    for truncated, expected in (("zero", [[0.5], [0.5]]), ("bootstrap", [[0.75], [0.5]])):
        spec = {"kind": "gae", "whiten": False, "gamma": 0.5, "truncated": truncated}
        training = training_of(policy, configured(policy, algorithm=PLAIN | {"advantage": spec}))
        constant(critic_of(training), 0.5)
        loss = loss_of(training, expected, [cut])
        assert train(training, [cut]).loss == pytest.approx(loss, rel=1e-4)


def test_a_divergence_in_the_reward_is_taken_off_each_token(new_policy: Callable[[], Policy]) -> None:
    policy, other = new_policy(), new_policy()
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.mul_(1.1)
    algorithm = PLAIN | {"kl": {"coefficient": 0.5, "placement": "reward"}}
    training = training_of(
        policy, configured(policy, algorithm=algorithm), reference=Reference(other, decay=None)
    )
    (labelled,) = on_policy(other, [contrast()])
    by_hand = []
    for answer, reward in zip(labelled.completions, (1.0, 0.0), strict=True):
        penalties = [0.5 * (-2.0 - ref) for ref in answer.logprobs]  # mu is -2 a token
        by_hand.append([reward - sum(penalties[t:]) for t in range(len(penalties))])  # reward to go
    expected = loss_of(training, by_hand, [contrast()])
    assert abs(by_hand[0][0] - by_hand[0][2]) > 0.1
    assert train(training, [contrast()]).loss == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("clip", [None, 0.2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_value_loss_falls_over_repeated_batches_and_values_explain_the_returns(
    policy: Policy, kind: str, clip: float | None
) -> None:
    # at a policy's rate of nearly 0 the batch stays the same
    config = configured(policy, "learner.learning_rate=1e-9", kind=kind, clip_range=clip)
    training = training_of(policy, config)
    metrics = [train(training, GROUPS).metrics for _ in range(40)]
    # What stays: the answers of a prompt start in one state, whose value is their mean. Squares around it are
    # 0.25 * 2, 0.1111 + 0.1736 + 0.0069 and 0.25 * 2, 1.2917 in all; half of it over 14 tokens is 0.0461. The
    # squares of all returns around 0.4821 are 2.4330, so 1 - 1.2917 / 2.4330 = 0.4691 of it is explained.
    assert metrics[0]["value_loss"] == pytest.approx(0.2031, abs=1e-4)  # V = 0: squares 5.6875 over 28
    assert metrics[-1]["value_loss"] == pytest.approx(0.0461, rel=0.2)
    assert metrics[-1]["explained_variance"] == pytest.approx(0.4691, abs=0.1)


def test_a_critic_of_its_own_trunk_or_none_leaves_the_policy_s_gradient_alone(
    new_policy: Callable[[], Policy],
) -> None:
    def at(**critic: Any) -> dict[str, torch.Tensor]:
        policy = new_policy()
        training = training_of(policy, configured(policy, **critic))
        unlike_zero(critic_of(training))
        return gradients(training, GROUPS)

    apart, alone = at(loss_coefficient=0.0), at(kind="model")
    # at the start the model's backbone is the policy's, so both say the same values
    torch.testing.assert_close(apart["policy"], alone["policy"], rtol=1e-4, atol=1e-6)
    assert float(alone["critic"].abs().max()) > 0


def test_a_shared_trunk_gets_the_coefficient_s_share_of_the_value_loss(
    new_policy: Callable[[], Policy],
) -> None:
    def at(share: float) -> dict[str, torch.Tensor]:
        policy = new_policy()
        policy.model.double()
        training = training_of(policy, configured(policy, loss_coefficient=share))
        unlike_zero(critic_of(training))
        return gradients(training, GROUPS)

    none, half, full = at(0.0), at(0.5), at(1.0)
    assert float((full["policy"] - none["policy"]).abs().max()) > 1e-3
    torch.testing.assert_close(
        half["policy"] - none["policy"], (full["policy"] - none["policy"]) / 2, rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(half["critic"], none["critic"])  # the head's own gradient is the whole one


def test_the_gradient_of_the_trunk_is_that_of_the_plain_value_loss(policy: Policy) -> None:
    # the policy's own part falls out of the difference of two coefficients; what is left is autograd's
    training = training_of(policy, configured(policy, loss_coefficient=1.0))
    critic = unlike_zero(critic_of(training))
    shared = gradients(training, [contrast()])["policy"]
    apart = training_of(policy, configured(policy, loss_coefficient=0.0))
    critic_of(apart).module.load_state_dict(critic.module.state_dict())
    own = shared - gradients(apart, [contrast()])["policy"]
    loss = torch.zeros(())
    for answer, reward in zip(contrast().completions, (1.0, 0.0), strict=True):
        tokens = torch.tensor([[3, 4, *answer.token_ids]])
        hidden = policy.model.base_model(input_ids=tokens).last_hidden_state[0]
        values = (hidden @ critic.module.head.weight.T + critic.module.head.bias)[:, 0]
        loss = loss + sum((values[1 + t] - reward) ** 2 / 2 / 5 for t in range(len(answer.token_ids)))
    expected = torch.autograd.grad(loss, list(policy.model.parameters()), allow_unused=True)
    flat_expected = torch.cat(
        [
            (torch.zeros_like(p) if g is None else g).flatten()
            for g, p in zip(expected, policy.model.parameters(), strict=True)
        ]
    )
    torch.testing.assert_close(own, flat_expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_any_split_into_rows_gives_the_same_gradients(
    new_policy: Callable[[], Policy], kind: str, shared: bool
) -> None:
    def at(tokens: int) -> dict[str, torch.Tensor]:
        policy = new_policy()
        policy.model.double()
        settings = [f"learner.max_tokens_per_row={tokens}", f"learner.share_prompts={str(shared).lower()}"]
        algorithm = PLAIN | {"advantage": {"kind": "gae", "gamma": 0.9, "lam": 0.8}}
        config = configured(policy, *settings, algorithm=algorithm, kind=kind, clip_range=0.2)
        training = training_of(policy, config)
        critic_of(training).module.double()
        unlike_zero(critic_of(training))
        return gradients(training, on_policy(policy, GROUPS))

    unsplit, split = at(1024), at(16)
    for name in ("policy", "critic"):
        largest = float(unsplit[name].abs().max())
        assert largest > 0
        torch.testing.assert_close(split[name], unsplit[name], rtol=1e-6, atol=1e-6 * largest)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_is_not_finite_on_either_side_changes_neither(policy: Policy, kind: str) -> None:
    training = training_of(policy, configured(policy, kind=kind))
    critic = unlike_zero(critic_of(training))
    before = flat(policy.model), flat(critic.module)
    junk = group(completion((5, 6), logprobs=(-1.0, math.nan)), completion((7,), reward=0.0))
    assert train(training, [junk]).bad == 1  # the policy's loss
    saved = critic.module.head.bias.item()
    critic.module.head.bias.data.fill_(math.inf)
    assert train(training, [contrast()]).bad == 1  # the critic's
    critic.module.head.bias.data.fill_(saved)
    assert torch.equal(flat(policy.model), before[0])
    assert torch.equal(flat(critic.module), before[1])
    assert critic.optimizer.state == {}
    assert training.optimizer.state == {}
    assert train(training, [contrast()]).bad == 0


def test_only_the_critic_trains_while_it_warms_up(policy: Policy) -> None:
    training = training_of(policy, configured(policy, warmup_steps=2, loss_coefficient=1.0))
    critic, before = unlike_zero(critic_of(training)), flat(policy.model)
    for version in (0, 1):
        head = flat(critic.module)
        result = train(training, [contrast()], version=version)
        assert (result.updates, result.bad) == (1, 0)
        assert not torch.equal(flat(critic.module), head)
        assert torch.equal(flat(policy.model), before)
    train(training, [contrast()], version=2)
    assert not torch.equal(flat(policy.model), before)


def test_a_token_over_age_trains_no_critic_but_still_counts(policy: Policy) -> None:
    config = configured(policy, "staleness.max_staleness=4")
    stale = group(completion((5, 6, 7), versions=(1, 1, 9)), completion((8, 9), versions=(1, 1)))
    training = training_of(policy, config)
    constant(critic_of(training), 0.0)
    result = training.train([stale], version=10, update=lambda change: None)
    computed_gradients = gradients(training, [stale], version=10)
    # one token of five: its slope 0 - 1 over 5 is the gradient of the bias
    assert computed_gradients["critic"][-1].item() == pytest.approx(-0.2)
    assert result.metrics["value_loss"] == pytest.approx(0.5)
    everything = training.train([contrast(version=0)], version=10, update=lambda change: None)
    assert everything.bad == 0


def test_groups_of_one_completion_train(policy: Policy) -> None:
    training = training_of(policy, configured(policy, "rollout.group_size=1"))
    before = flat(policy.model)
    alone = [group(completion((5, 6, 7)), name="a"), group(completion((8, 9), reward=0.0), name="b")]
    assert train(training, alone).updates == 1
    assert not torch.equal(flat(policy.model), before)


def test_a_batch_of_withheld_completions_changes_nothing(policy: Policy) -> None:
    training = training_of(policy, configured(policy))
    before = flat(policy.model), flat(critic_of(training).module)
    result = train(training, [group(completion(reward=None), completion(reward=None))])
    assert (result.loss, result.bad, result.tokens) == (0.0, 0, 0)
    assert torch.equal(flat(policy.model), before[0])
    assert torch.equal(flat(critic_of(training).module), before[1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_critic_goes_on_bit_for_bit(
    new_policy: Callable[[], Policy], tmp_path: Path, kind: str
) -> None:
    policy = new_policy()
    config = configured(policy, "learner.schedule.warmup_steps=3", kind=kind, clip_range=0.2)
    uninterrupted = training_of(policy, config)
    train(uninterrupted, GROUPS, version=0)
    state = State(version=1, model_fingerprint="f")
    saved = save(tmp_path, uninterrupted, state)
    again = training_of(new_policy(), config)
    restore(again, saved)
    for version in (1, 2):
        results = [train(training, GROUPS, version=version) for training in (uninterrupted, again)]
        assert results[0].metrics == pytest.approx(results[1].metrics, rel=0, abs=0, nan_ok=True)
    assert torch.equal(flat(critic_of(again).module), flat(critic_of(uninterrupted).module))
    assert torch.equal(flat(again.policy.model), flat(uninterrupted.policy.model))


def test_a_checkpoint_of_another_critic_is_refused_and_one_without_leaves_it_new(
    policy: Policy, tmp_path: Path
) -> None:
    training = training_of(policy, configured(policy))
    state = State(version=1, model_fingerprint="f")
    saved = save(tmp_path, training, state)
    other = training_of(policy, configured(policy, kind="model"))
    with pytest.raises(CheckpointError, match=r"has nothing for critic/module/backbone"):
        restore(other, saved)
    with pytest.raises(CheckpointError, match=r"learner\.critic is of another kind"):
        restore(training_of(policy, configured(policy)), save(tmp_path / "model", other, state))
    without = save(tmp_path / "without", TrainingStep(policy, config_with()), state)
    restore(other, without)
    assert float(critic_of(other).module.head.weight.detach().abs().max()) == 0


def test_a_value_model_of_another_vocabulary_is_refused(policy: Policy, tmp_path: Path) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    make_tiny_model(TINY, tmp_path / "other", seed=2)
    config = Qwen2Config.from_pretrained(tmp_path / "other")
    config.vocab_size = 17
    config.pad_token_id = config.eos_token_id = 0
    Qwen2ForCausalLM(config).save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match=r"learner\.critic\.path: .*other has a vocabulary of 17 tokens"):
        load_critic(configured(policy, kind="model", path=str(tmp_path / "other")), policy)


def test_a_value_model_starts_from_the_directory_that_is_named(policy: Policy, tmp_path: Path) -> None:
    make_tiny_model(TINY.model_copy(update={"width": 64}), tmp_path / "wide", seed=2)
    critic = load_critic(configured(policy, kind="model", path=str(tmp_path / "wide")), policy)
    assert critic is not None
    assert critic.module.head.weight.shape == (1, 64)
    assert not critic.reads_policy


def test_a_critic_has_its_own_learning_rate_and_gradient_norm(policy: Policy) -> None:
    config = configured(policy, "learner.schedule.warmup_steps=4", "learner.max_grad_norm=1e-3")
    training = training_of(policy, config)
    computed_gradients = gradients(training, GROUPS, version=1)
    assert float(computed_gradients["critic"].norm()) == pytest.approx(1e-3, rel=1e-3)
    assert float(computed_gradients["policy"].norm()) == pytest.approx(1e-3, rel=1e-3)
    assert critic_of(training).optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * 2 / 4)
    default = training_of(policy, configured(policy, "learner.learning_rate=0.003", learning_rate=None))
    train(default, GROUPS)
    assert critic_of(default).optimizer.param_groups[0]["lr"] == pytest.approx(0.03)


def test_a_run_without_gae_has_no_critic_and_one_with_it_needs_one(policy: Policy) -> None:
    assert load_critic(config_with(), policy) is None
    with pytest.raises(ValueError, match="the advantage gae, and no other, trains with a critic"):
        TrainingStep(policy, configured(policy))
    critic = load_critic(configured(policy), policy)
    with pytest.raises(ValueError, match="the advantage gae, and no other"):
        TrainingStep(policy, config_with(), critic=critic)


def test_equal_answers_share_their_advantage_but_not_their_value(policy: Policy) -> None:
    twice = group(completion((5, 6)), completion((5, 6)), completion((8,), reward=0.0))
    algorithm = PLAIN | {"shaping": {"duplicates": "share"}}
    training = training_of(policy, configured(policy, algorithm=algorithm))
    expected = loss_of(training, [[0.5, 0.5], [0.5, 0.5], [0.0]], [twice])
    result = train(training, [twice])
    assert result.loss == pytest.approx(expected, rel=1e-4)
    assert result.metrics["value_loss"] == pytest.approx(0.4)  # four returns of 1 and one of 0


def test_the_bound_of_m2po_takes_advantages_of_tokens(policy: Policy) -> None:
    algorithm = PLAIN | {"correction": {"kind": "m2po"}}
    results = []
    for tokens in (16, 64):
        config = configured(policy, f"learner.max_tokens_per_row={tokens}", algorithm=algorithm)
        training = training_of(policy, config)
        constant(critic_of(training), 0.5)  # A is -0.5 at wrong answers, which have become less likely: harm
        results.append(training.train([contrast("a"), contrast("b")], version=0, update=lambda change: None))
    assert results[0].metrics["dropped_fraction"] == results[1].metrics["dropped_fraction"] > 0


def test_the_metrics_of_the_critic_reach_the_step_s_row_and_prometheus(policy: Policy) -> None:
    result = train(training_of(policy, configured(policy)), GROUPS)
    assert set(CRITIC) <= set(result.metrics)
    assert result.metrics["critic_gradient_norm"] > 0
    metrics = Metrics()
    observe_critic(metrics, result.metrics)
    page = generate_latest(metrics.registry).decode()
    assert f"slipstream_value_loss {result.metrics['value_loss']}" in page
    empty = Metrics()
    observe_critic(empty, {"loss": 1.0})
    assert b"slipstream_value_loss" not in generate_latest(empty.registry)


def test_the_places_of_values_are_those_before_sampled_tokens_then_the_last_ones() -> None:
    sequences = make_sequences([GROUPS[1]], Shaping())
    row = make_row(sequences, sampled_tokens(sequences), torch.device("cpu"))
    # prompt 0, answer 1-4 with the second not sampled | prompt 5, answer 6 | prompt 7, answer 8-9
    assert value_positions(row).tolist() == [0, 2, 3, 5, 7, 8, 4, 6, 9]
