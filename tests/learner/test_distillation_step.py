"""A training step with a teacher: the gradient of the divergence, computed from the models' own logits."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learner.fakes import completion, config_with, group, with_teacher_logprobs
from slipstream.config import RunConfig
from slipstream.learner.batches.rows import empty_row
from slipstream.learner.policy.model import Policy
from slipstream.learner.training.step import TrainingStep
from slipstream.records import Completion, Group, TeacherLogprobs

PLAIN: dict[str, Any] = {
    "preset": "grpo",
    "objective": {"kind": "is"},
    "aggregation": "token_mean",
    "shaping": None,
}
CPU = torch.device("cpu")


def configured(*overrides: str, **distillation: Any) -> RunConfig:
    algorithm = PLAIN | {"distillation": distillation}
    return config_with("learner.max_grad_norm=1e9", *overrides, algorithm=algorithm)


def batch(top_k: int) -> list[Group]:
    """Two groups; in one completion an environment has put in a token."""
    groups = [
        group(completion((5, 6, 7)), completion((8, 9), reward=0.0), name="a"),
        group(
            completion((5, 30, 9, 7), mask=(1, 0, 1, 1)), completion((1,), reward=0.0), name="b", prompt=(4,)
        ),
    ]
    return with_teacher_logprobs(groups, top_k=top_k)


def gradient_of(policy: Policy, config: RunConfig, groups: Sequence[Group]) -> dict[str, torch.Tensor]:
    """What the step hands to the optimizer, by parameter."""
    gradient: dict[str, torch.Tensor] = {}

    def look(change: Callable[[], None]) -> None:
        for name, parameter in policy.model.named_parameters():
            assert parameter.grad is not None
            gradient[name] = parameter.grad.clone()

    TrainingStep(policy, config).train(groups, version=0, update=look)
    return gradient


def floats(payload: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(payload, "<f4").copy())


def lesson(answer: Completion) -> TeacherLogprobs:
    assert answer.teacher is not None
    return answer.teacher


def logprobs_of(
    policy: Policy, prompt: Sequence[int], answer: Completion, temperature: float
) -> torch.Tensor:
    """Logprobs [tokens, V] by the model's own logits, one sequence by itself."""
    ids = torch.tensor([[*prompt, *answer.token_ids]])
    logits = policy.model(input_ids=ids, use_cache=False).logits[0].float()
    all_logprobs: torch.Tensor = (logits / temperature).log_softmax(dim=-1)
    return all_logprobs[len(prompt) - 1 : -1]


def slow_loss(policy: Policy, groups: Sequence[Group], *, kind: str, temperature: float) -> torch.Tensor:
    """The mean over sampled tokens, from whole distributions and by hand over cells."""
    terms = []
    for each in groups:
        for answer in each.completions:
            policy_TV = logprobs_of(policy, each.prompt_token_ids, answer, temperature)
            teacher = lesson(answer)
            own_T = floats(teacher.logprobs)
            for t, (token, sampled) in enumerate(zip(answer.token_ids, answer.mask, strict=True)):
                if not sampled:
                    continue
                if kind == "advantage":
                    ratio = (policy_TV[t, token] + 2.0).exp()  # rollout logprobs are -2
                    terms.append(-ratio * (own_T[t] - policy_TV[t, token]).detach())
                    continue
                k = teacher.top_k
                ids = np.frombuffer(teacher.top_ids, "<u4").reshape(-1, k)[t].tolist()
                top = floats(teacher.top_logprobs).reshape(-1, k)[t]
                if token not in ids:
                    ids, top = [*ids, token], torch.cat([top, own_T[t : t + 1]])
                q, p = policy_TV[t, ids].exp(), top.exp()
                q, p = torch.cat([q, 1 - q.sum()[None]]), torch.cat([p, 1 - p.sum()[None]])
                terms.append(
                    (p * (p.log() - q.log())).sum() if kind == "forward" else (q * (q.log() - p.log())).sum()
                )
    return torch.stack(terms).mean()


@pytest.mark.parametrize("kind", ["advantage", "reverse", "forward"])
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("learner.share_prompts=true",),
        ("learner.max_tokens_per_row=16",),
        ("rollout.temperature=0.7", "learner.logprob_chunk=5"),
    ],
    ids=["plain", "shared prompts", "several rows", "temperature"],
)
def test_the_gradient_is_that_of_the_models_own_logits(
    new_policy: Callable[[], Policy], kind: str, overrides: tuple[str, ...]
) -> None:
    options: dict[str, Any] = {"kind": kind} if kind == "advantage" else {"kind": kind, "top_k": 4}
    groups = batch(options.get("top_k", 0))
    config = configured(*overrides, **options)
    policy = new_policy()
    gradient = gradient_of(policy, config, groups)
    slow = new_policy()
    slow_loss(slow, groups, kind=kind, temperature=config.rollout.temperature).backward()
    for name, parameter in slow.model.named_parameters():
        torch.testing.assert_close(gradient[name], parameter.grad, rtol=1e-3, atol=1e-5, msg=name)
    assert max(float(value.abs().max()) for value in gradient.values()) > 1e-3


@pytest.mark.parametrize("kind", ["advantage", "reverse"])
def test_a_completion_alone_in_its_group_learns_from_the_teacher(
    new_policy: Callable[[], Policy], kind: str
) -> None:
    options: dict[str, Any] = {"kind": kind} if kind == "advantage" else {"kind": kind, "top_k": 4}
    lone = [
        group(each.completions[0], name=each.group_id, prompt=each.prompt_token_ids)
        for each in batch(options.get("top_k", 0))
    ]
    policy, slow = new_policy(), new_policy()
    gradient = gradient_of(policy, configured("rollout.group_size=1", **options), lone)
    slow_loss(slow, lone, kind=kind, temperature=1.0).backward()
    for name, parameter in slow.model.named_parameters():
        torch.testing.assert_close(gradient[name], parameter.grad, rtol=1e-3, atol=1e-5, msg=name)


def test_rewards_train_beside_the_teacher_with_their_weight(new_policy: Callable[[], Policy]) -> None:
    options: dict[str, Any] = {"kind": "forward", "top_k": 4}
    groups = batch(4)
    alone = gradient_of(new_policy(), configured(**options), groups)
    both = gradient_of(new_policy(), configured(**options, reward_weight=0.5), groups)
    plain = [
        group(
            *(completion(c.token_ids, mask=c.mask, reward=c.rewards[0].value) for c in g.completions),
            prompt=g.prompt_token_ids,
        )
        for g in groups
    ]
    rewards = gradient_of(new_policy(), config_with("learner.max_grad_norm=1e9", algorithm=PLAIN), plain)
    for name, value in both.items():
        torch.testing.assert_close(value, alone[name] + 0.5 * rewards[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    "options",
    [{"kind": "advantage"}, {"kind": "reverse", "top_k": 8}, {"kind": "mixed", "top_k": 8}],
    ids=str,
)
def test_steps_on_one_batch_bring_the_policy_nearer_to_the_teacher(
    new_policy: Callable[[], Policy], options: dict[str, Any]
) -> None:
    training = TrainingStep(new_policy(), configured("learner.learning_rate=3e-3", **options))
    groups = batch(options.get("top_k", 0))
    results = [training.train(groups, version=i) for i in range(12)]
    first, last = results[0].metrics["kl_teacher"], results[-1].metrics["kl_teacher"]
    assert last < first if options["kind"] == "advantage" else results[-1].loss < 0.7 * results[0].loss


def test_a_batch_without_the_teachers_logprobs_is_refused(new_policy: Callable[[], Policy]) -> None:
    plain = group(completion((5, 6)), completion((7,), reward=0.0))
    (taught,) = with_teacher_logprobs([plain], top_k=0)
    training = TrainingStep(new_policy(), configured(kind="advantage"))
    with pytest.raises(ValueError, match="teacher_logprobs: got None"):
        training.train([plain], version=0)
    half = group(taught.completions[0], plain.completions[1])
    with pytest.raises(ValueError, match="1 of 2 segments of a row have no logprobs of the teacher"):
        training.train([half], version=0)


def test_an_empty_row_has_as_many_likeliest_tokens_as_the_others(tiny_dir: Path) -> None:
    lesson = empty_row(CPU, top_k=3).teacher
    assert lesson is not None
    assert lesson.ids_TK is not None
    assert tuple(lesson.ids_TK.shape) == (1, 3)
    assert empty_row(CPU, top_k=0).teacher is not None
    assert empty_row(CPU).teacher is None
