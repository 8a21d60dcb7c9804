"""Made-up groups, a tiny policy's configuration, and hand-written collaborators of the learner."""

import asyncio
import io
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from slipstream.config import RunConfig, TinyModel, parse_config
from slipstream.learner.broadcast.publisher import Published
from slipstream.learner.checkpoints.checkpoint import CheckpointWriter, State
from slipstream.learner.policy.model import Policy
from slipstream.learner.ranks.ranks import Alone
from slipstream.learner.training.record import StepResult
from slipstream.learner.training.state import collect
from slipstream.learner.training.step import TrainingStep
from slipstream.records import (
    Activity,
    Admission,
    Completion,
    Cursor,
    Evaluation,
    FinishReason,
    Generated,
    Group,
    Ledger,
    Outcome,
    Prompt,
    Reward,
    TeacherLogprobs,
    TopLogprobs,
    VersionSpan,
)
from slipstream.rpc.errors import Unreachable
from slipstream.samples.writer import FilteredGroup
from slipstream.telemetry.logs import Log


def save(root: Path, training: TrainingStep, state: State) -> Path:
    """Write a checkpoint, and wait for it."""
    writer = CheckpointWriter(root, Alone())
    writer.prepare(state, training.policy)
    writer.begin(state.version, collect(training))
    path = writer.settle()
    assert path is not None
    return path


TINY = TinyModel(layers=2, width=32, heads=1, max_tokens=64)
TINY_EXPERTS = TinyModel(layers=3, width=32, heads=1, max_tokens=64, experts=8)


def config_with(*overrides: str, **tree: Any) -> RunConfig:
    """A run configuration for two groups of two, on the CPU."""
    base = {
        "learner": {"groups_per_step": 2, "device": "cpu", "learning_rate": 1e-2, "max_tokens_per_row": 64},
        "rollout": {"group_size": 2, "max_new_tokens": 8},
        "model": {"tiny": TINY.model_dump()},
    }
    return parse_config(base | tree, overrides)


def completion(
    tokens: Sequence[int] = (5, 6, 7),
    *,
    versions: Sequence[int] = (),
    logprobs: Sequence[float] = (),
    mask: Sequence[int] = (),
    reward: float | None = 1.0,
    name: str = "exact_match",
) -> Completion:
    """An answer; `versions` are those of its tokens (default 0), `reward` None means that scoring failed."""
    size = len(tokens)
    versions = list(versions) or [0] * size
    changes = [i for i in range(size) if i == 0 or versions[i] != versions[i - 1]]
    spans = [
        VersionSpan(version=versions[start], start=start, end=end)
        for start, end in zip(changes, [*changes[1:], size], strict=True)
    ]
    outcome = Outcome.ERROR if reward is None else Outcome.SCORE
    return Completion(
        token_ids=tuple(tokens),
        logprobs=tuple(logprobs) or (-2.0,) * size,
        mask=tuple(mask) or (1,) * size,
        spans=tuple(spans),
        finish_reason=FinishReason.STOP,
        text="".join(chr(97 + token % 26) for token in tokens),
        rewards=(Reward(name=name, value=reward or 0.0, outcome=outcome),),
    )


def group(*completions: Completion, name: str = "g", prompt: Sequence[int] = (3, 4)) -> Group:
    """A finished group."""
    return Group(
        group_id=name,
        lease_epoch=1,
        dispatch_index=0,
        prompt=Prompt(prompt_id=name, task="made up", answer="4", text="2+2="),
        prompt_token_ids=tuple(prompt),
        completions=completions,
    )


def contrast(name: str = "g", *, version: int = 0) -> Group:
    """A group in which one answer is right and one is wrong."""
    return group(
        completion((5, 6, 7), versions=[version] * 3, reward=1.0),
        completion((8, 9), versions=[version] * 2, reward=0.0),
        name=name,
    )


def with_teacher_logprobs(groups: Sequence[Group], *, top_k: int, seed: int = 0) -> list[Group]:
    """The groups with what a made-up teacher of 64 tokens says, its `top_k` likeliest tokens among it."""
    generator = torch.Generator().manual_seed(seed)

    def lesson(completion: Completion) -> TeacherLogprobs:
        logprobs_TV = torch.randn(len(completion.token_ids), 64, generator=generator).log_softmax(dim=1)
        own_T = logprobs_TV.gather(1, torch.tensor(completion.token_ids)[:, None])
        top = logprobs_TV.topk(top_k, dim=1)
        return TeacherLogprobs(
            logprobs=own_T.numpy().astype("<f4").tobytes(),
            top_k=top_k,
            top_ids=top.indices.numpy().astype("<u4").tobytes(),
            top_logprobs=top.values.numpy().astype("<f4").tobytes(),
        )

    return [
        replace(g, completions=tuple(replace(c, teacher=lesson(c)) for c in g.completions)) for g in groups
    ]


def with_top_logprobs(
    groups: Sequence[Group], policy: Policy, *, top_k: int, temperature: float, noise: float, seed: int = 0
) -> list[Group]:
    """The groups as a policy sampled them whose logits differ by `noise` from this one's: logprobs, and the
    `top_k` likeliest tokens at each sampled one."""
    generator = torch.Generator().manual_seed(seed)

    def sampled(group: Group, completion: Completion) -> Completion:
        ids = torch.tensor([[*group.prompt_token_ids, *completion.token_ids]])
        with torch.no_grad():
            logits_TV = policy.model(input_ids=ids, use_cache=False).logits[0].float()
        logits_TV = logits_TV[len(group.prompt_token_ids) - 1 : -1]
        logits_TV = logits_TV + noise * torch.randn(logits_TV.shape, generator=generator)
        logprobs_TV = (logits_TV / temperature).log_softmax(dim=1)
        own_T = logprobs_TV.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        mask_T = torch.tensor(completion.mask, dtype=torch.bool)
        top = logprobs_TV[mask_T].topk(top_k, dim=1)
        return replace(
            completion,
            logprobs=tuple(torch.where(mask_T, own_T, 0.0).tolist()),
            top_logprobs=TopLogprobs(
                top_k=top_k,
                ids=top.indices.numpy().astype("<u4").tobytes(),
                logprobs=top.values.numpy().astype("<f4").tobytes(),
            ),
        )

    return [replace(g, completions=tuple(sampled(g, c) for c in g.completions)) for g in groups]


def silent_log() -> Log:
    """A log that can be read back: `log.stream.getvalue()`."""
    return Log(pod="test", level="debug", stream=io.StringIO())


def said(log: Log) -> str:
    """What was logged so far."""
    assert isinstance(log.stream, io.StringIO)
    return log.stream.getvalue()


def step_result(
    *,
    bad: int = 0,
    loss: float = 0.5,
    by_staleness: Mapping[str, Mapping[str, float]] | None = None,
    **metrics: float,
) -> StepResult:
    """The result of a step in which nothing happened."""
    return StepResult(
        loss=loss,
        gradient_norm=1.0,
        learning_rate=0.1,
        updates=0 if bad else 1,
        bad=bad,
        tokens=10,
        metrics={"mean_ratio": 1.0, "trained_tokens": 10.0, **metrics},
        by_staleness=by_staleness or {},
        staleness_mean=0.5,
        staleness_max=1,
        staleness_histogram={"0": 5, "1": 5},
        staleness_counts={0: 5, 1: 5},
        ratio_counts={1.0: 10},
        model_flops=3000.0,
    )


class Events(list[str]):
    """What happened, in order; `wait_for` ends when something has."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = asyncio.Event()

    def note(self, event: str) -> None:
        self.append(event)
        self._changed.set()

    async def wait_for(self, event: str) -> None:
        async with asyncio.timeout(10):
            while event not in self:
                self._changed.clear()
                await self._changed.wait()


class FakeReplay:
    """Gives made-up batches, as many as it is told to; then it lets the learner wait.

    Calls in `away` find nobody.
    """

    def __init__(self, events: Events, *, batches: int) -> None:
        self._events = events
        self.left = batches
        self.admission = Admission()
        self.away: set[str] = set()
        self.filtered: list[list[FilteredGroup]] = []
        """What each call of `take_filtered` returns; nothing afterwards."""
        self.filtered_come = asyncio.Event()
        """Until it is set, `take_filtered` sends nothing."""
        self.filtered_come.set()

    async def take_filtered(self) -> AsyncIterator[FilteredGroup]:
        self._answer("take_filtered")
        await self.filtered_come.wait()
        for group in self.filtered.pop(0) if self.filtered else []:
            yield group

    def _answer(self, call: str) -> None:
        if call in self.away:
            raise Unreachable(f"{call}: nobody there")

    async def activity(self) -> Activity:
        self._answer("activity")
        return Activity(ledger=Ledger(inserted=3, buffered=1), admission=self.admission)

    async def sample(self, version: int) -> list[Group]:
        self._answer("sample")
        if not self.left:
            await asyncio.sleep(0.01)
            return []
        self.left -= 1
        self._events.note(f"sample {version}")
        return [contrast(f"{version}-{i}", version=version) for i in range(2)]

    async def ack(self, groups: Sequence[Group], version: int) -> tuple[Generated, Cursor]:
        self._answer("ack")
        self._events.note(f"ack {names(groups)} as {version}")
        return Generated(groups=len(groups)), Cursor(dispatched=version * len(groups))

    async def release(self, groups: Sequence[Group]) -> None:
        self._answer("release")
        self._events.note(f"release {names(groups)}")

    async def announce(self, version: int) -> None:
        self._answer("announce")
        self._events.note(f"announce {version}")

    async def confirm_checkpoint(self, version: int) -> None:
        self._answer("confirm")
        self._events.note(f"confirm {version}")


def names(groups: Iterable[Group]) -> str:
    """The names of some groups."""
    return ",".join(each_group.group_id for each_group in groups)


class FakePublisher:
    """Publishes to nobody."""

    def __init__(self, events: Events, weights: asyncio.Lock) -> None:
        self._events = events
        self._weights = weights
        self.slow: asyncio.Event | None = None
        self.failure: Exception | None = None

    def wants_probe(self, version: int) -> bool:
        return False

    async def publish(self, version: int) -> Published:
        assert self._weights.locked(), "published while somebody may change the weights"
        self._events.note(f"publish {version}")
        if self.slow is not None:
            await self.slow.wait()
        if self.failure is not None:
            raise self.failure
        return Published(rollouts=0, seconds=0.0, pause_seconds=0.0, transfer_seconds=0.0)


class FakeEvaluator:
    """Evaluates at once."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self.last_step: int | None = None

    def begin(self, version: int) -> None:
        self._events.note(f"begin evaluation {version}")

    async def settle(self, stop: asyncio.Event) -> None:
        pass

    async def evaluate(self, version: int, stop: asyncio.Event) -> None:
        self._events.note(f"evaluate {version}")
        self.last_step = version


class FakeEvaluations:
    """Replay as the evaluator sees it: done after so many looks, or never."""

    def __init__(self, *, looks: int | None) -> None:
        self._left = looks
        self.asked: dict[str, Any] = {}
        self.groups: list[tuple[int, bytes]] = []
        """Those that `take_evaluated` has not been told to forget, by number."""
        self.failure: Exception | None = None

    async def start_evaluation(self, version: int, **what: Any) -> str:
        self.asked = {"version": version, **what}
        return "evaluation-1"

    async def take_evaluated(self, evaluation_id: str, start: int) -> list[tuple[int, bytes]]:
        if self.failure is not None:
            raise self.failure
        self.groups = [(number, payload) for number, payload in self.groups if number >= start]
        return self.groups

    async def evaluation(self, evaluation_id: str) -> Evaluation:
        if self._left is not None:
            self._left -= 1
        done = self._left is not None and self._left <= 0
        return Evaluation(
            done=done,
            version=3,
            completions=8,
            errors=1,
            accuracy=0.75,
            best_of_n=0.9,
            majority=0.8,
            mean_version=3.5,
        )


def read_text(path: Path) -> str:
    """The content of a file."""
    return path.read_text(encoding="utf-8")
