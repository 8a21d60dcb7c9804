"""The program of each rank in test_loading_in_parts.py; torchrun starts it."""

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from learner.fakes import config_with
from learner.ranks_worker import ALGORITHM, groups
from slipstream.config import RunConfig
from slipstream.learner.policy import loading, sharded_loading
from slipstream.learner.policy.lora import load_trained
from slipstream.learner.policy.model import Policy, whole
from slipstream.learner.policy.reference import load_reference
from slipstream.learner.ranks.ranks import TorchRanks
from slipstream.learner.training.critic import load_critic
from slipstream.learner.training.step import TrainingStep

CPU = torch.device("cpu")


def equal(ranks: TorchRanks, out: Path, *models: str) -> None:
    """Load each model as one and in parts, and write what differs, by model."""
    differing = {}
    for model in map(Path, models):
        expected = loading.load_policy(model, source=model, device=CPU, dtype=torch.float32)
        policy = loading.load_policy(model, source=model, device=CPU, dtype=torch.float32, mesh=ranks.mesh)
        differing[model.name] = sorted(unequal(expected, policy))
    if not ranks.rank:
        out.write_text(json.dumps(differing))


def unequal(expected: Policy, loaded: Policy) -> Iterator[str]:
    """Names of parameters and buffers that are not the same bit for bit, or are tied in one model alone."""
    for kind in ("parameters", "buffers"):
        left, right = (dict(getattr(each.model, f"named_{kind}")()) for each in (expected, loaded))
        yield from left.keys() ^ right.keys()
        for name in left:  # in the same order on every rank
            theirs = whole(right[name])
            if left[name].dtype != theirs.dtype or not torch.equal(left[name], theirs):
                yield name


def measured(ranks: TorchRanks, out: Path, model: str) -> None:
    """Write the bytes that this rank has read from files, and by how much its memory grew at most."""
    where = Path(model)
    config_with(model={"path": model})  # what is imported at first use is not part of the measure
    loading._empty(origin(where))
    read, before = bytes_read(), forget_peak()
    policy = loading.load_policy(where, source=where, device=CPU, dtype=torch.float32, mesh=ranks.mesh)
    share = sum(each.to_local().nbytes for each in policy.model.parameters())
    figures = {"read": bytes_read() - read, "grown": peak() - before, "share": share}
    (out.parent / f"{out.name}-{ranks.rank}").write_text(json.dumps(figures))


def most_bytes_of_a_base(model: str) -> None:
    """Print the most bytes that parameters have while a base in bfloat16 is loaded and checked as one."""
    sizes: list[int] = []
    check = loading._check_logprobs

    def watched(policy: Policy) -> None:
        for module in policy.model.modules():
            module.register_forward_hook(
                lambda *_: sizes.append(sum(p.nbytes for p in policy.model.parameters()))
            )
        check(policy)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "_check_logprobs", watched)
        where = Path(model)
        loading.load_policy(where, source=where, device=CPU, dtype=torch.bfloat16, stored=torch.bfloat16)
    print(max(sizes))


STEPS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "bfloat16": ("model.dtype=bfloat16",),
    "a moving reference": ("algorithm.reference={kind: ema, decay: 0.9}",),
    "adapters": ("learner.lora={rank: 2, target_modules: [q_proj, o_proj]}", "model.dtype=bfloat16"),
    "a critic with a backbone": (
        "algorithm.preset=ppo",
        "algorithm.advantage.kind=gae",
        "learner.critic.kind=model",
    ),
}
"""Overrides of the configuration."""


def steps(ranks: TorchRanks, out: Path, *models: str) -> None:
    """Train one step on a model loaded as one, and one on the same loaded in parts; write what differs."""
    differing = {}
    for name, overrides in STEPS.items():
        for model in models:
            config = config_with(*overrides, model={"path": model}, algorithm=ALGORITHM)
            with loaded_as_one():
                expected = trained(config, ranks)
            tensors = trained(config, ranks)
            assert len(expected) > 10
            assert expected.keys() == tensors.keys()
            unlike = [key for key, value in expected.items() if not torch.equal(value, tensors[key])]
            differing[f"{name}: {Path(model).name}"] = unlike
    if not ranks.rank:
        out.write_text(json.dumps(differing))


def trained(config: RunConfig, ranks: TorchRanks) -> dict[str, torch.Tensor]:
    """Weights after a step, as the learner pod loads and trains."""
    torch.manual_seed(config.seed)
    policy = load_trained(config, device=CPU, mesh=ranks.mesh)
    reference = load_reference(config, device=CPU, dtype=policy.dtype, policy=policy, mesh=ranks.mesh)
    critic = load_critic(config, policy, ranks.mesh)
    training = TrainingStep(policy, config, reference=reference, critic=critic, ranks=ranks)
    training.train(groups(1), version=0)
    tensors = {name: whole(each.detach()).clone() for name, each in policy.model.named_parameters()}
    if critic is not None:
        tensors |= {
            f"critic/{name}": whole(each.detach()).clone() for name, each in critic.module.named_parameters()
        }
    return tensors | {"the next random number": torch.rand(1)}


@contextmanager
def loaded_as_one() -> Iterator[None]:
    """Every rank loads whole models, which are sharded afterwards."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(sharded_loading, "why_not_in_parts", lambda *_: "this is the way to compare with")
        yield


def refused(ranks: TorchRanks, out: Path, *models: str) -> None:
    """Write with what message each model is refused."""
    messages = {}
    for where in map(Path, models):
        try:
            loading.load_policy(where, source=where, device=CPU, dtype=torch.float32, mesh=ranks.mesh)
        except (ValueError, OSError) as error:
            messages[where.name] = str(error)
    (out.parent / f"{out.name}-{ranks.rank}").write_text(json.dumps(messages))


def bytes_read() -> int:
    """By system calls of this process, from whatever file."""
    return int(Path("/proc/self/io").read_text().split()[1])


def forget_peak() -> int:
    """Memory of this process in bytes, which is its peak from now on."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    """Largest memory of this process, in bytes."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def origin(where: Path) -> loading._Origin:
    """What makes a model without data."""
    from transformers import AutoConfig

    return loading._Origin(
        weights=where,
        source=where,
        device=CPU,
        dtype=torch.float32,
        stored=torch.float32,
        config=AutoConfig.from_pretrained(where),
    )


SCENES: dict[str, Callable[..., None]] = {
    "equal": equal,
    "measured": measured,
    "steps": steps,
    "refused": refused,
}


def main() -> None:
    """Do what the first argument says; the second names the file of the result."""
    torch.set_num_threads(1)
    scene, out, *rest = sys.argv[1:]
    ranks = TorchRanks(CPU, timeout_seconds=60)
    SCENES[scene](ranks, Path(out), *rest)
    ranks.close()


if __name__ == "__main__":
    main()
