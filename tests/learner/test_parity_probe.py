"""The parity probe is of the published weights, and the same tokens in every version."""

from collections.abc import Callable

import pytest
import torch
from learner.worker import Learner, Worker, play
from slipstream.config import LoraConfig
from slipstream.learner.broadcast.parity_probe import take_parity_probe
from slipstream.learner.broadcast.snapshot import Snapshot
from slipstream.learner.policy.lora import LoraPolicy
from slipstream.learner.policy.model import Policy
from slipstream.learner.ranks.ranks import Alone

TOKENS = 40


def own_logprobs(model: torch.nn.Module, token_ids: tuple[int, ...]) -> list[float]:
    """Return the logprobs that transformers computes."""
    tokens = torch.tensor(token_ids)
    with torch.no_grad():
        logits = model(tokens[None]).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(1, tokens[1:, None]).squeeze(1).tolist()


def moved(policy: Policy) -> Policy:
    with torch.no_grad():
        for _, parameter in policy.trained_parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return policy


@pytest.mark.parametrize("kind", ["dense", "experts", "adapters"])
def test_the_probe_has_the_logprobs_of_the_model(
    kind: str, new_policy: Callable[[], Policy], new_moe_policy: Callable[[], Policy]
) -> None:
    policy = new_moe_policy() if kind == "experts" else new_policy()
    if kind == "adapters":
        policy = LoraPolicy(policy, LoraConfig(rank=4, alpha=8))
    before = take_parity_probe(policy, TOKENS)
    after = take_parity_probe(moved(policy), TOKENS)
    assert before.token_ids == after.token_ids
    assert len(set(after.token_ids)) > TOKENS / 2
    assert after.logprobs != before.logprobs
    assert after.logprobs == pytest.approx(own_logprobs(policy.model, after.token_ids), abs=1e-4)


def test_a_snapshot_has_the_probe_of_the_weights_that_it_copied(policy: Policy) -> None:
    snapshot = Snapshot(policy, Alone(), parity_tokens=TOKENS)
    snapshot.take()
    assert snapshot.probe == take_parity_probe(policy, TOKENS)
    first = snapshot.probe
    moved(policy)
    assert snapshot.probe == first
    snapshot.take()
    assert snapshot.probe != first


def test_rollouts_get_a_probe_after_they_joined_and_every_ten_versions(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        early, late = Worker("early"), Worker("late")
        await learner.join(early)
        for version in range(1, 13):
            await learner.publish(version)
        assert early.probed == [1, 10]
        await learner.join(late)
        for version in range(13, 16):
            await learner.publish(version)
        assert late.probed == [13]
        assert early.probed == [1, 10, 13]

    play(policy, scene)


@pytest.mark.parametrize("tokens", [0, 1, 2])
def test_as_many_logprobs_are_compared_as_the_configuration_says(policy: Policy, tokens: int) -> None:
    snapshot = Snapshot(policy, Alone(), parity_tokens=tokens)
    snapshot.take()
    assert (0 if snapshot.probe is None else len(snapshot.probe.logprobs)) == tokens
    snapshot.take(probe=False)
    assert snapshot.probe is None


def test_the_probe_leaves_no_gradient(policy: Policy) -> None:
    take_parity_probe(policy, TOKENS)
    assert all(parameter.grad is None for _, parameter in policy.trained_parameters())
