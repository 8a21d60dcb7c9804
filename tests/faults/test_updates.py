"""Rollouts that are killed, stopped or disconnected in each part of a weight update.

All rollouts are real processes. A rollout that is cut off, or whose connections are reset, runs on a machine
of its own (machines.py).
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from faults.machines import HOST, Machine, can_make_machines, machines
from learner.fakes import said
from learner.worker import Learner, learner_of
from slipstream.config import TinyModel
from slipstream.learner.policy.loading import load_policy
from slipstream.learner.policy.model import Policy
from slipstream.learner.policy.tiny import make_tiny_model
from slipstream.weights.delta import digest

CPU = torch.device("cpu")
Record = Callable[[str, object], None]
SLOW_ROLLOUT = Path(__file__).with_name("slow_rollout.py")
ROLLOUTS = 4
PATIENCE = 2.0
DEADLINE = 60.0
GO_ON_SECONDS = 2.0
"""Until then the rollouts that are not disturbed receive the version, which may be for the second time."""
SERVE_SECONDS = {"kill": 8.0, "reset": 12.0, "stop": 8.0, "cut": 8.0}
"""Until then they serve it. An update takes 1.3 s without a fault, and 0.3 to 1.9 s, 0.3 to 3.8 s (with the
disturbed one, which joins again) and 1.3 to 3.0 s with these."""
PAUSE_SECONDS = 2.0
"""The longest pause of a rollout that is not disturbed; 0.3 s of it are the load."""

ON_MACHINES = {"cut", "reset"}
"""Faults of the network: every packet is lost, or all connections are reset once."""

EVENTS = {"forming": "forming", "full": "full 3", "delta": "delta 3", "loading": "loading 3"}
EVENTS_BEFORE = {"forming": 2, "full": 9, "delta": 5, "loading": 1}
"""The rollout is disturbed after so many events of the third update."""


@dataclass
class Rollout:
    """One process. `machine`: where it runs, if not beside the learner."""

    name: str
    address: str
    folder: Path
    machine: Machine | None = None
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def start(self) -> None:
        prefix = self.machine.prefix if self.machine else ()
        command = (sys.executable, str(SLOW_ROLLOUT), self.address, self.name, str(self.folder))
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), OMP_NUM_THREADS="1")
        with (self.folder / f"{self.name}.log").open("a") as log:
            self.processes.append(
                subprocess.Popen((*prefix, *command), stdout=log, stderr=log, env=environment)
            )

    def disturb(self, fault: str) -> None:
        if fault in ON_MACHINES:
            assert self.machine is not None
            self.machine.cut() if fault == "cut" else self.machine.reset()
        else:
            self.processes[-1].send_signal(signal.SIGKILL if fault == "kill" else signal.SIGSTOP)

    def mend(self, fault: str) -> None:
        if fault == "kill":
            self.start()
        elif fault == "cut":
            assert self.machine is not None
            self.machine.mend()
        elif fault == "stop":
            self.processes[-1].send_signal(signal.SIGCONT)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def events(self) -> list[str]:
        events = self.folder / f"{self.name}.events"
        return events.read_text().splitlines() if events.exists() else []

    def log(self) -> str:
        return (self.folder / f"{self.name}.log").read_text()

    def count(self, event: str) -> int:
        """Return the number of events that begin with this."""
        return sum(line.partition(" ")[2].startswith(event) for line in self.events())

    def longest_pause(self) -> float:
        """Return the seconds of the longest pause that has ended, but for the first one (the first load)."""
        pauses, began = [], 0.0
        for moment, event in (line.split(maxsplit=1) for line in self.events()):
            if event == "pause":
                began = float(moment)
            elif event == "resume":
                pauses.append(float(moment) - began)
        return max(pauses[1:], default=0.0)

    def last_receipt(self, version: int) -> float:
        """Return the moment at which it began to receive a version, for the last time if it did so twice."""
        moment, receiving = 0.0, False
        for began, event in (line.split(maxsplit=1) for line in self.events()):
            if event.startswith((f"full {version} ", f"delta {version} ")):
                moment, receiving = moment if receiving else float(began), True
            elif event == "forming":
                receiving = False
        return moment

    def digests(self, version: int) -> dict[str, int]:
        """Return the digests of the tensors that it served as a version; none if it did not serve it."""
        file = self.folder / f"{self.name}.{version}.json"
        return dict(json.loads(file.read_text())) if file.exists() else {}


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    """Return a model whose deltas take several buckets."""
    directory = tmp_path / "model"
    make_tiny_model(TinyModel(layers=2, width=256, heads=4, max_tokens=64), directory, seed=1)
    return load_policy(directory, source=directory, device=CPU, dtype=torch.float32)


@pytest.mark.faults
@pytest.mark.parametrize("part", ["forming", "full", "delta", "loading"])
@pytest.mark.parametrize("fault", ["kill", "stop", "cut", "reset"])
def test_a_rollout_disturbed_in_an_update_costs_the_others_neither_the_version_nor_a_long_pause(
    policy: Policy, tmp_path: Path, fault: str, part: str, record_property: Record
) -> None:
    if fault in ON_MACHINES and not can_make_machines():
        pytest.skip("needs iproute2, and the right to make network namespaces")
    costs = asyncio.run(asyncio.wait_for(disturbed_update(policy, tmp_path, fault, part), 300))
    record_property("seconds_to_go_on", costs.seconds_to_go_on)
    record_property("seconds_to_serve", costs.seconds_to_serve)
    record_property("longest_pause_seconds", costs.pause_seconds)
    assert costs.seconds_to_go_on < GO_ON_SECONDS


@pytest.mark.parametrize(("fault", "part"), [("kill", "delta"), ("stop", "full")])
def test_the_others_serve_a_version_without_a_rollout_that_dies_or_stops_while_it_receives(
    policy: Policy, tmp_path: Path, fault: str, part: str
) -> None:
    asyncio.run(asyncio.wait_for(disturbed_update(policy, tmp_path, fault, part), 300))


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(1, 7))
def test_any_three_of_sixteen_rollouts_that_fail_at_once_delay_the_others_by_less_than_a_deadline(
    policy: Policy, tmp_path: Path, seed: int
) -> None:
    if not can_make_machines():
        pytest.skip("needs iproute2, and the right to make network namespaces")
    asyncio.run(asyncio.wait_for(three_of_sixteen(policy, tmp_path, random.Random(seed)), 500))


async def three_of_sixteen(policy: Policy, folder: Path, draw: random.Random) -> None:
    """Kill, stop and cut off one rollout each, at random moments of one delta."""
    async with fleet(policy, folder, on_machines=True, size=16) as (learner, rollouts):
        await started(learner, rollouts)
        for version in (1, 2):
            published = await learner.train(version, 0.02)
            assert published.rollouts == len(rollouts), said(learner.log)
        disturbed = dict(zip(["kill", "stop", "cut"], draw.sample(rollouts, 3), strict=True))
        others = [rollout for rollout in rollouts if rollout not in disturbed.values()]
        publishing = asyncio.create_task(learner.train(3, 0.02))
        await until(lambda: disturbed["kill"].count("delta 3") > 0, seconds=20)
        began = time.monotonic()
        for fault, rollout in disturbed.items():
            rollout.disturb(fault)
            await asyncio.sleep(draw.uniform(0, 0.5))
        published = await publishing
        seconds = time.monotonic() - began
        digests = digests_of(policy)
        report = "\n".join([said(learner.log), str(disturbed)])
        assert published.rollouts == len(others), report
        assert [rollout.name for rollout in others if rollout.digests(3) != digests] == [], report
        assert seconds < DEADLINE, report
        assert max(rollout.longest_pause() for rollout in others) < PAUSE_SECONDS
        for fault, rollout in disturbed.items():
            rollout.mend(fault)
        await all_serve(learner, policy, rollouts, version=3, until=began + 90)


async def all_serve(
    learner: Learner, policy: Policy, rollouts: Sequence[Rollout], *, version: int, until: float
) -> None:
    """Publish until all rollouts serve the last version, some of which may miss a few."""
    digests = digests_of(policy)
    while late := [rollout for rollout in rollouts if rollout.digests(version) != digests]:
        reports = [f"{rollout.name}: {rollout.events()[-3:]}\n{rollout.log()[-2000:]}" for rollout in late]
        assert time.monotonic() < until, "\n".join([said(learner.log), f"version {version}", *reports])
        await asyncio.sleep(1)
        version += 1
        await learner.train(version, 0.02)
        digests = digests_of(policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a fault costs the other rollouts. The first two count from the fault.

    seconds_to_go_on: until the last of them began to receive the version that it served; 0 if it had begun.
    seconds_to_serve: until all of them served it. pause_seconds: the longest pause of any of them.
    """

    seconds_to_go_on: float
    seconds_to_serve: float
    pause_seconds: float


async def disturbed_update(policy: Policy, folder: Path, fault: str, part: str) -> Costs:
    """Disturb a rollout in a part of the third update, and check this update and the next ones."""
    async with fleet(policy, folder, on_machines=fault in ON_MACHINES) as (learner, rollouts):
        disturbed, *others = rollouts
        joiner = others.pop() if part == "forming" else None
        await started(learner, [disturbed, *others])
        await learner.train(1, 0.02)
        await learner.train(2, 0.02)
        if joiner is not None:
            await started(learner, [joiner])
            others.append(joiner)
        before = disturbed.count(EVENTS[part])
        share = 0.02 if part in {"delta", "loading"} else 1.0  # a joiner does not join the group of a delta
        publishing = asyncio.create_task(learner.train(3, share))
        await until(lambda: disturbed.count(EVENTS[part]) - before >= EVENTS_BEFORE[part], seconds=20)
        began = time.monotonic()
        disturbed.disturb(fault)
        published = await publishing
        seconds = time.monotonic() - began
        digests = digests_of(policy)
        report = "\n".join([said(learner.log), *disturbed.events()[-5:]])
        may_be_back = fault == "reset"
        assert len(others) <= published.rollouts <= len(others) + may_be_back, report
        assert [rollout.name for rollout in others if rollout.digests(3) != digests] == [], report
        assert seconds < SERVE_SECONDS[fault], report
        going_on = max(rollout.last_receipt(3) for rollout in others) - began
        pause = max(rollout.longest_pause() for rollout in others)
        assert pause < PAUSE_SECONDS
        disturbed.mend(fault)
        await all_serve(learner, policy, (disturbed, *others), version=3, until=began + 90)
        return Costs(seconds_to_go_on=max(0.0, going_on), seconds_to_serve=seconds, pause_seconds=pause)


@asynccontextmanager
async def fleet(
    policy: Policy, folder: Path, *, on_machines: bool, size: int = ROLLOUTS
) -> AsyncIterator[tuple[Learner, list[Rollout]]]:
    """Give a learner and rollouts that are not started yet; kill them at the end."""
    with ExitStack() as undo:
        places = undo.enter_context(machines(size)) if on_machines else (None,) * size
        settings = {"max_lag": 2, "patience_seconds": PATIENCE, "host": HOST if on_machines else "127.0.0.1"}
        async with learner_of(policy, DEADLINE, **settings) as learner:
            rollouts = [
                Rollout(f"rollout-{number}", learner.address, folder, place)
                for number, place in enumerate(places)
            ]
            try:
                yield learner, rollouts
            finally:
                for rollout in rollouts:
                    rollout.kill()


async def started(learner: Learner, rollouts: Sequence[Rollout]) -> None:
    """Start rollouts, and return once the fleet has them."""
    for rollout in rollouts:
        rollout.start()
    names = {rollout.name for rollout in rollouts}
    seconds = 15.0 * max(ROLLOUTS, len(rollouts))
    await until(lambda: names <= {member.worker_id for member in learner.fleet.members()}, seconds=seconds)


async def until(true: Callable[[], bool], *, seconds: float) -> None:
    """Return once something is true, within a bound."""
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110 (what is waited for is in another process)
            await asyncio.sleep(0.005)


def digests_of(policy: Policy) -> dict[str, int]:
    """Return the digest of each tensor of the learner."""
    return {name: digest(tensor.detach().contiguous()) for name, tensor in policy.named_tensors()}
