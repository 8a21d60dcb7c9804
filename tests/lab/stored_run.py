"""A run of a tiny model that the learner's own step trained: checkpoints, stored batches, configuration."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
import yaml
from learner.fakes import completion, group, save, silent_log
from learner.test_step import logprobs_of
from slipstream.config import RunConfig, parse_config
from slipstream.lab.weights import Weights
from slipstream.learner.checkpoints.checkpoint import State
from slipstream.learner.clients import decode_group
from slipstream.learner.policy.lora import load_trained
from slipstream.learner.policy.model import Policy
from slipstream.learner.training.step import TrainingStep
from slipstream.records import Completion, Group, Segment
from slipstream.samples.writer import SampleWriter

STEPS = 5
CHECKPOINTS = (2, 3)
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """The directory of the run, and the groups of each step."""

    run_dir: Path
    config: RunConfig
    groups: dict[int, list[Group]]

    @property
    def own(self) -> Any:
        """The loss of the run."""
        return self.config.algorithm.resolved_loss(
            max_staleness=self.config.staleness.max_staleness,
            max_new_tokens=self.config.rollout.max_new_tokens,
        )

    def weights(self, version: int) -> Weights:
        """Load a checkpoint as the lab does."""
        return Weights(self.config, self.checkpoint(version), self.own, device="cpu")

    def checkpoint(self, version: int) -> Path:
        return self.run_dir / "checkpoints" / f"step_{version:08d}"


def make_run(directory: Path, model: Path, **sections: Any) -> StoredRun:
    """Train STEPS steps, and store what the learner stores."""
    tree: dict[str, Any] = {
        "model": {"path": str(model)},
        "rollout": {"group_size": 3, "max_new_tokens": 8},
        "rewards": [{"name": "exact_match"}],
        "staleness": {"max_staleness": 2},
        **sections,
    }
    learner = {"groups_per_step": 4, "device": "cpu", "learning_rate": 2e-3, "max_tokens_per_row": 40}
    tree["learner"] = learner | sections.get("learner", {})
    directory.mkdir()
    (directory / "config.yaml").write_text(yaml.safe_dump(tree))
    config = parse_config(tree, [])
    training = TrainingStep(load_trained(config, device=CPU), config)
    groups: dict[int, list[Group]] = {}
    weights = {"exact_match": 1.0}
    writer = SampleWriter(
        *(directory, config.learner.samples),
        weights=weights,
        version=0,
        decode=decode_group,
        log=silent_log(),
    )
    for step in range(1, STEPS + 1):
        groups[step] = [_sampled(training.policy, each, Random(step)) for each in _groups(step)]
        result = training.train(groups[step], version=step - 1)
        writer.put(step, groups[step], result.token_values)
        writer.wait()
        if step in CHECKPOINTS:
            state = State(version=step, model_fingerprint="f", memory=training.memory.to_dict())
            save(directory / "checkpoints", training, state)
    writer.close()
    return StoredRun(run_dir=directory, config=config, groups=groups)


def _groups(step: int) -> Iterator[Group]:
    """Yield groups with tokens of an environment, of several ages, and a completion of two segments."""
    random = Random(step)
    for number in range(4):
        members = [_member(random, step, reward=random.random()) for _ in range(3)]
        if not number:
            members[0] = replace(members[0], later_segments=(_segment(random, step),))
        made = group(*members, name=f"g{step}-{number}", prompt=_tokens(random, random.randint(1, 4)))
        yield replace(made, dispatch_index=4 * step + number)


def _member(random: Random, step: int, *, reward: float) -> Completion:
    size = random.randint(2, 6)
    return completion(
        _tokens(random, size),
        versions=sorted(random.randint(max(0, step - 4), step - 1) for _ in range(size)),
        mask=[1, *(int(random.random() < 0.8) for _ in range(size - 1))],
        reward=reward,
    )


def _segment(random: Random, step: int) -> Segment:
    """A conversation with a prompt of its own."""
    member = _member(random, step, reward=0.0)
    first = {name: getattr(member, name) for name in Segment.__dataclass_fields__}
    return Segment(**{**first, "prompt_token_ids": _tokens(random, 3)})


def _sampled(policy: Policy, group: Group, random: Random) -> Group:
    """Return the group as a policy sampled it whose logprobs are near those of this one."""

    def near(segment: Any) -> Any:
        within = replace(group, prompt_token_ids=group.prompt_of(segment))
        logprobs = [each + random.gauss(0, 0.15) for each in logprobs_of(policy, within, segment)]
        return replace(segment, logprobs=tuple(logprobs))

    completions = [
        replace(near(each), later_segments=tuple(map(near, each.later_segments)))
        for each in group.completions
    ]
    return replace(group, completions=tuple(completions))


def _tokens(random: Random, count: int) -> tuple[int, ...]:
    return tuple(random.randint(1, 20) for _ in range(count))


def flat_gradient(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """The gradients of parameters, one after the other."""
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
