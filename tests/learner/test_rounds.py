"""The order of events in a round, its ends, and the resume of an interrupted stage."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from learner.fakes import Events, config_with, contrast, names, silent_log
from safetensors.torch import load_file
from slipstream.cli.launch.history import read_history
from slipstream.learner.policy.loading import load_policy
from slipstream.learner.policy.model import Policy
from slipstream.learner.report import Report
from slipstream.learner.stages.rounds import Rounds, number_of, rounds_of
from slipstream.learner.stages.supervised import Interrupted
from slipstream.learner.stages.verified import NothingKept, RoundResult
from slipstream.learner.starvation import Starved
from slipstream.records import Activity, Admission, Generated, Group
from slipstream.telemetry.metrics import Metrics


class Replay:
    """Has so many groups for each version, and gives them in parts as they are asked for."""

    def __init__(self, events: Events, *, groups: int, paused: bool = False) -> None:
        self._events = events
        self._groups = groups
        self._admission = Admission(paused=paused)
        self._given: dict[int, int] = {}

    async def activity(self) -> Activity:
        return Activity(admission=self._admission)

    async def sample(self, version: int, *, groups: int) -> list[Group]:
        groups_given = self._given.get(version, 0)
        if groups_given + groups > self._groups:
            await asyncio.sleep(0.01)
            return []
        self._given[version] = groups_given + groups
        return [contrast(f"{version}-{groups_given + i}", version=version) for i in range(groups)]

    async def ack(self, groups: Sequence[Group], version: int) -> Generated:
        self._events.note(f"ack {len(groups)} as {version}")
        return Generated()

    async def confirm_checkpoint(self, version: int) -> None:
        self._events.note(f"confirm {version}")

    async def announce(self, version: int) -> None:
        self._events.note(f"announce {version}")


class Training:
    """Notes what it was given; `fate` is raised in its place."""

    def __init__(self, events: Events, run_dir: Path, fate: Exception | None = None) -> None:
        self._events = events
        self._run_dir = run_dir
        self._fate = fate

    def learn(
        self,
        groups: Sequence[Group],
        *,
        version: int,
        report: Callable[[int, int, float], None],
        stopped: Callable[[], bool],
    ) -> RoundResult:
        self._events.append(f"learn {names(groups[:1])}…{names(groups[-1:])}")
        if self._fate is not None:
            raise self._fate
        if stopped():
            raise Interrupted
        report(1, 1, 0.5)
        return RoundResult(
            rows=[{"round": version + 1}], counts={"kept": len(groups)}, steps=1, loss=0.5, tokens=9
        )


class Delivery:
    """Looks, when a version is published, whether its model is durable."""

    def __init__(self, events: Events, run_dir: Path, weights: asyncio.Lock) -> None:
        self._events = events
        self._run_dir = run_dir
        self._weights = weights

    async def publish(self, version: int) -> int:
        assert self._weights.locked(), "published while somebody may change the weights"
        self._events.note(f"publish {version} with {[number_of(path) for path in rounds_of(self._run_dir)]}")
        return 2

    async def evaluate(self, version: int, stop: asyncio.Event) -> None:
        self._events.note(f"evaluate {version}")


class Scene:
    """Rounds with fakes around them."""

    def __init__(
        self,
        policy: Policy,
        run_dir: Path,
        *overrides: str,
        version: int = 0,
        groups: int = 40,
        fate: Exception | None = None,
        paused: bool = False,
    ) -> None:
        self._paused = paused
        self.events, self.run_dir, self.stop = Events(), run_dir, asyncio.Event()
        self._parts: dict[str, Any] = {"fate": fate, "groups": groups, "version": version, "policy": policy}
        self._overrides = ("learner.steps=2", "learner.groups_per_step=40", *overrides)

    async def _run(self) -> None:
        weights, report = asyncio.Lock(), Report(self.run_dir, Metrics())
        parts: dict[str, Any] = {
            "training": Training(self.events, self.run_dir, self._parts["fate"]),
            "delivery": Delivery(self.events, self.run_dir, weights),
            "replay": Replay(self.events, groups=self._parts["groups"], paused=self._paused),
        }
        rounds = Rounds(
            config=config_with(*self._overrides),
            run_dir=self.run_dir,
            policy=self._parts["policy"],
            report=report,
            weights=weights,
            version=self._parts["version"],
            log=silent_log(),
            **parts,
        )
        await asyncio.wait_for(rounds.run(self.stop), 20)

    def run(self) -> list[str]:
        """To the end; what happened."""
        asyncio.run(self._run())
        return self.events

    def rows(self, event: str) -> list[dict[str, Any]]:
        all_rows = map(json.loads, (self.run_dir / "metrics.jsonl").read_text().splitlines())
        return [row for row in all_rows if row["event"] == event]


def test_a_round_samples_all_learns_is_durable_and_only_then_published_and_announced(
    policy: Policy, tmp_path: Path
) -> None:
    assert Scene(policy, tmp_path).run() == [
        "evaluate 0",
        "ack 32 as 1",
        "ack 8 as 1",
        "learn 0-0…0-39",
        "confirm 1",
        "publish 1 with [1]",
        "announce 1",
        "evaluate 1",
        "ack 32 as 2",
        "ack 8 as 2",
        "learn 1-0…1-39",
        "confirm 2",
        "publish 2 with [2]",
        "evaluate 2",
    ]


def test_a_finished_stage_leaves_a_model_the_sets_of_its_rounds_and_rows_that_the_launcher_reads(
    policy: Policy, tmp_path: Path
) -> None:
    scene = Scene(policy, tmp_path)
    scene.run()
    assert (tmp_path / "model" / "model.safetensors").exists()
    assert [number_of(path) for path in rounds_of(tmp_path)] == [2]
    sets = sorted((tmp_path / "rounds").glob("*.jsonl"))
    assert [json.loads(path.read_text()) for path in sets] == [{"round": 1}, {"round": 2}]
    history = read_history(tmp_path / "metrics.jsonl")
    assert history.has_finished(2)
    assert history.total("completions") == 2 * 40 * 2
    step = scene.rows("step")[0]
    assert (step["kept"], step["reward_mean"], step["workers"]) == ({"kept": 40}, 0.5, 2)
    messages = [row["text"] for row in scene.rows("progress")]
    assert "round 1/2: sampled 40 of 40 prompts" in messages
    assert "round 2/2: optimizer step 1/1  loss 0.500" in messages
    assert "round 2/2: 40 kept" in messages


def test_a_stage_goes_on_behind_its_last_durable_round(policy: Policy, tmp_path: Path) -> None:
    assert Scene(policy, tmp_path, version=1).run()[:4] == [
        "evaluate 1",
        "ack 32 as 2",
        "ack 8 as 2",
        "learn 1-0…1-39",
    ]


def test_a_stage_whose_rounds_are_all_durable_only_measures_and_leaves_its_model(
    policy: Policy, tmp_path: Path
) -> None:
    assert Scene(policy, tmp_path, version=2).run() == ["evaluate 2"]
    assert (tmp_path / "model" / "config.json").exists()


@pytest.mark.parametrize("groups", [0, 40])
def test_a_stop_while_sampling_or_learning_gives_the_round_up(
    policy: Policy, tmp_path: Path, groups: int
) -> None:
    scene = Scene(policy, tmp_path, groups=groups, fate=Interrupted() if groups else None)
    if not groups:
        scene.stop.set()
    events = scene.run()
    assert not [event for event in events if event.startswith(("publish", "confirm"))]
    assert scene.rows("interrupted")[0]["step"] == 0
    assert not (tmp_path / "model").exists()
    assert rounds_of(tmp_path) == []


def test_a_round_without_groups_starves_at_its_deadline(policy: Policy, tmp_path: Path) -> None:
    with pytest.raises(Starved, match=r"no 8 groups within 0.05 s \(learner.sample_timeout_seconds\)"):
        Scene(policy, tmp_path, "learner.sample_timeout_seconds=0.05", groups=32).run()


def test_a_first_round_has_the_time_of_an_engines_start_too(policy: Policy, tmp_path: Path) -> None:
    waits = ("learner.sample_timeout_seconds=0.05", "rollout.start_timeout_seconds=0.25")
    message = r"within 0.3 s \(learner.sample_timeout_seconds \+ rollout.start_timeout_seconds\)"
    with pytest.raises(Starved, match=message):
        Scene(policy, tmp_path, *waits, groups=0).run()


def test_a_round_of_a_paused_run_waits_beyond_its_deadline(policy: Policy, tmp_path: Path) -> None:
    waits = ("learner.sample_timeout_seconds=0.05", "rollout.start_timeout_seconds=0.05")
    scene = Scene(policy, tmp_path, *waits, groups=0, paused=True)

    async def play() -> None:
        asyncio.get_running_loop().call_later(0.6, scene.stop.set)
        await scene._run()

    asyncio.run(play())
    assert scene.rows("interrupted")[0]["step"] == 0


def test_a_round_that_keeps_nothing_ends_the_stage_and_changes_nothing(
    policy: Policy, tmp_path: Path
) -> None:
    scene = Scene(policy, tmp_path, fate=NothingKept("kept 0 of 80 answers"))
    with pytest.raises(NothingKept):
        scene.run()
    assert scene.rows("finished") == []
    assert rounds_of(tmp_path) == []


def test_a_round_in_bfloat16_keeps_float32_weights_and_the_stage_leaves_those_that_were_served(
    tiny_dir: Path, tmp_path: Path
) -> None:
    policy = load_policy(tiny_dir, source=tiny_dir, device=torch.device("cpu"), dtype=torch.bfloat16)
    Scene(policy, tmp_path).run()
    (last,) = rounds_of(tmp_path)
    kept, left = (load_file(folder / "model.safetensors") for folder in (last, tmp_path / "model"))
    assert {tensor.dtype for tensor in kept.values()} == {torch.float32}
    assert {tensor.dtype for tensor in left.values()} == {torch.bfloat16}
    assert all(torch.equal(left[name], tensor.to(torch.bfloat16)) for name, tensor in kept.items())
