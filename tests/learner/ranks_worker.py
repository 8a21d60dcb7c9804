"""The program of each rank in test_ranks.py; torchrun starts it."""

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from learner.fakes import completion, config_with, contrast, group, with_teacher_logprobs, with_top_logprobs
from slipstream.config import RunConfig
from slipstream.learner.broadcast.snapshot import Snapshot
from slipstream.learner.checkpoints.checkpoint import CheckpointWriter, State, read_state
from slipstream.learner.lockstep import Lockstep, follow
from slipstream.learner.policy.loading import load_policy
from slipstream.learner.policy.model import Policy, whole
from slipstream.learner.policy.reference import load_reference
from slipstream.learner.ranks.ranks import Alone, RankLost, TorchRanks, started_by_torchrun
from slipstream.learner.ranks.sharding import checkpoint_activations
from slipstream.learner.training.critic import load_critic
from slipstream.learner.training.state import collect, restore
from slipstream.learner.training.step import TrainingStep
from slipstream.records import Group, StepReward

CPU = torch.device("cpu")
ALGORITHM: dict[str, Any] = {"preset": "cispo", "kl": {"coefficient": 0.05}, "top_entropy": {"share": 0.5}}
"""An algorithm whose ranks have to agree on a threshold, with a reference."""
CASES = {
    "plain": (),
    "minibatches": ("learner.minibatches=3",),
    "epochs": ("learner.epochs=2", "learner.minibatches=2"),
    "shared prompts": ("learner.share_prompts=true",),
    "activation checkpointing": ("learner.activation_checkpointing=true",),
    "critic": ("algorithm.advantage.kind=gae", "algorithm.preset=ppo"),
    "a baseline by token": ("algorithm.advantage={kind: optimal_token}", "learner.minibatches=2"),
    "rewards by step": (
        "algorithm.supervision=process",
        "algorithm.advantage={kind: grpo}",
        "learner.minibatches=2",
    ),
    "critic by step": (
        "algorithm.advantage.kind=gae",
        "algorithm.preset=ppo",
        "algorithm.supervision=process",
    ),
    "covariances": (
        "algorithm.top_entropy=null",
        "algorithm.clip_cov={share: 0.3, low: 0.000001, high: 1000}",
        "algorithm.kl_cov={share: 0.2}",
    ),
    "distillation": ("algorithm.distillation={kind: mixed, top_k: 4, reward_weight: 0.5}",),
    "top logprobs": ("algorithm.objective={kind: dppo, divergence: topk_kl, top_k: 3, limit_low: 0.1}",),
    "kl in the reward": ("algorithm.kl.placement=reward", "algorithm.kl.coefficient=0.1"),
}
"""Overrides of the configuration."""


def groups(seed: int) -> list[Group]:
    """Ragged groups of two to four answers, rewards from 0 to 1."""
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int) -> int:
        return int(torch.randint(high, (1,), generator=generator))

    def answer() -> Any:
        tokens = [5 + draw(20) for _ in range(1 + draw(9))]
        made = completion(tokens, logprobs=[-1.0 - draw(9) / 10 for _ in tokens], reward=draw(5) / 4)
        ends = {1 + draw(len(tokens)), len(tokens)}
        steps = tuple(StepReward(value=draw(5) / 4, text_end=end, token_end=end) for end in sorted(ends))
        return replace(made, rewards=(replace(made.rewards[0], steps=steps),))

    return [
        group(*(answer() for _ in range(2 + draw(3))), prompt=tuple(3 + draw(9) for _ in range(1 + draw(6))))
        for _ in range(7)
    ]


def configured(model: Path, *overrides: str, **algorithm: Any) -> RunConfig:
    """Rows of 24 tokens, so that there are several a rank."""
    return config_with(
        "learner.max_tokens_per_row=32",
        "learner.max_grad_norm=1e9",
        *overrides,
        model={"path": str(model)},
        algorithm=ALGORITHM | algorithm,
    )


def make(config: RunConfig, ranks: Alone | TorchRanks) -> TrainingStep:
    """As the learner pod makes it."""
    source = config.model.directory()
    dtype = getattr(torch, config.model.dtype)
    mesh = ranks.mesh if isinstance(ranks, TorchRanks) else None
    policy = load_policy(source, source=source, device=CPU, dtype=dtype, mesh=mesh)
    reference = load_reference(config, device=CPU, dtype=dtype, mesh=mesh)
    if config.learner.activation_checkpointing:
        checkpoint_activations(policy.model)
    critic = load_critic(config, policy, mesh)
    return TrainingStep(policy, config, reference=reference, critic=critic, ranks=ranks)


def gradient(training: TrainingStep, batch: list[Group], version: int = 0) -> dict[str, torch.Tensor]:
    """What one step would hand to the optimizer, whole, by parameter."""
    gradients: dict[str, torch.Tensor] = {}

    def look(change: Callable[[], None]) -> None:
        for name, parameter in training.policy.model.named_parameters():
            if parameter.grad is not None:
                gradients[name] = whole(parameter.grad).clone()
        for name, parameter in training.critic.module.named_parameters() if training.critic else ():
            if parameter.grad is not None:
                gradients[f"critic/{name}"] = whole(parameter.grad).clone()

    result = training.train(batch, version=version, update=look)
    numbers = [result.loss, result.gradient_norm, float(result.tokens), result.model_flops]
    gradients["loss"] = torch.tensor(numbers)
    values = result.token_values
    assert values is not None
    order = np.lexsort((values.order_N, values.completion_N))
    columns = [values.completion_N, values.order_N, *values.columns().values()]
    gradients["tokens"] = torch.from_numpy(np.stack([column[order].astype(np.float32) for column in columns]))
    metrics = {name: value for name, value in result.metrics.items() if value == value}
    gradients["metrics"] = torch.tensor([metrics[name] for name in sorted(metrics)])
    return gradients


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    """Whole, by name; every rank must ask."""
    return {name: tensor.detach().clone() for name, tensor in policy.named_tensors()}


def main() -> None:
    """Do what the first argument says, with the model and in the folder that follow."""
    torch.set_num_threads(1)
    scene, model, folder, *rest = sys.argv[1:]
    ranks = TorchRanks(CPU, timeout_seconds=20) if started_by_torchrun() else Alone()
    SCENES[scene](ranks, Path(model), Path(folder), *rest)
    ranks.close()


def compare(ranks: Any, model: Path, folder: Path, case: str) -> None:
    """Write the gradient of this number of ranks."""
    training = make(configured(model, *CASES[case]), ranks)
    batch = groups(1)
    if case == "distillation":
        batch = with_teacher_logprobs(batch, top_k=4)
    elif case == "top logprobs":
        policy = load_policy(model, source=model, device=CPU, dtype=torch.float32)
        batch = with_top_logprobs(batch, policy, top_k=3, temperature=1.0, noise=1.0)
    computed = gradient(training, batch)
    if ranks.rank == 0:
        torch.save(computed, folder / f"{case}-{ranks.size}.pt")


def several(ranks: Any, model: Path, folder: Path) -> None:
    """Scenes in one start of the processes, which is what takes the time."""
    for case in CASES:
        compare(ranks, model, folder, case)
    some_empty(ranks, model, folder)
    not_finite(ranks, model, folder)
    (folder / f"text-{ranks.rank}").write_text(ranks.first_text("the disk is full" if ranks.rank else ""))


def some_empty(ranks: Any, model: Path, folder: Path) -> None:
    """One sequence for two ranks, then none at all: nobody waits for anybody in vain."""
    training = make(configured(model), ranks)
    result = training.train([contrast("a")], version=0)
    assert result.updates == 1
    withheld = [replace(g, completions=tuple(completion(reward=None) for _ in range(2))) for g in groups(2)]
    nothing = training.train(withheld, version=1)
    if ranks.rank == 0:
        (folder / "done").write_text(str(nothing.tokens))


def not_finite(ranks: Any, model: Path, folder: Path) -> None:
    """The weights of rank 1 alone make NaN; no rank changes anything."""
    training = make(configured(model), ranks)
    before = {name: p.to_local().clone() for name, p in training.policy.model.named_parameters()}  # type: ignore[attr-defined]
    dirty = groups(1)
    bad = replace(dirty[0].completions[0], logprobs=(float("nan"),) * len(dirty[0].completions[0].logprobs))
    dirty[0] = replace(dirty[0], completions=(bad, *dirty[0].completions[1:]))
    result = training.train(dirty, version=0)
    same = all(torch.equal(before[n], p.to_local()) for n, p in training.policy.model.named_parameters())  # type: ignore[attr-defined]
    (folder / f"rank-{ranks.rank}").write_text(json.dumps([result.updates, result.bad, same]))


def train_and_save(ranks: Any, model: Path, folder: Path, first: str, last: str) -> None:
    """Steps `first` to `last`, from the newest checkpoint of an earlier call; a checkpoint at the end."""
    training = make(configured(model, "learner.steps=9"), ranks)
    root = folder / "checkpoints"
    if int(first) > 1:
        checkpoint = root / f"step_{int(first) - 1:08d}"
        restore(training, checkpoint)
        training.memory = training.memory.restored(read_state(checkpoint).memory)
    for version in range(int(first), int(last) + 1):
        training.train(groups(version), version=version - 1)
    writer = CheckpointWriter(root, ranks)
    if ranks.rank == 0:
        memory = training.memory.to_dict()
        writer.prepare(State(version=int(last), model_fingerprint="f", memory=memory), training.policy)
    ranks.any(False)  # the folder is there
    writer.begin(int(last), collect(training))
    writer.settle()
    weights_after = weights(training.policy)
    if ranks.rank == 0:
        torch.save(weights_after, folder / f"weights-{first}-{last}-{ranks.size}.pt")


def lockstep(ranks: TorchRanks, model: Path, folder: Path, dies: str) -> None:
    """Rank 0 leads through some steps; rank 1 may die before the second."""
    import asyncio

    config = configured(model, "learner.steps=9")
    training = make(config, ranks)
    snapshot = Snapshot(training.policy, ranks, parity_tokens=32)
    writer = CheckpointWriter(folder / "checkpoints", ranks)
    if ranks.rank:
        if dies == "yes":
            train, steps = training.train, []

            def mortal(*arguments: Any, **keywords: Any) -> Any:
                steps.append(1)
                if len(steps) == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                return train(*arguments, **keywords)

            training.train = mortal  # type: ignore[method-assign]
        follow(ranks, training, snapshot, writer)
        return
    leader = Lockstep(ranks, training, snapshot, writer)

    async def lead() -> None:
        for version in range(2):
            await leader.train(groups(version), version=version, stopped=lambda: False, unvaried_share=None)
            await leader.take_snapshot()
            await leader.begin_checkpoint(State(version=version + 1, model_fingerprint="f"))
            await leader.settle_checkpoint()
        await leader.finish()

    try:
        asyncio.run(lead())
    except RankLost as error:
        (folder / "lost").write_text(str(error))
        sys.exit(3)
    torch.save(snapshot.tensors, folder / "snapshot.pt")
    assert snapshot.probe is not None
    torch.save(snapshot.probe.logprobs, folder / "probe.pt")


SCENES: dict[str, Callable[..., None]] = {
    "several": several,
    "train_and_save": train_and_save,
    "lockstep": lockstep,
}

if __name__ == "__main__":
    main()
