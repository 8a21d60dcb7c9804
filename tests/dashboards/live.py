"""Two small runs at the same time, and a real Prometheus that scrapes their pods as in a cluster."""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from dashboards.boards import script
from slipstream.config import TinyModel
from slipstream.learner.policy.tiny import make_tiny_model
from system.driver import Run, running

QUICKSTART = script("quickstart")
NAMESPACE: str = QUICKSTART.NAMESPACE
POOLS = {"rollout-0": "on-demand", "rollout-1": "spot"}
QUICK = (
    "rollout.engine=emulated",
    "rollout.emulated.median_seconds=0.5",
    "rollout.workers=2",
    "rollout.max_groups=12",
    "rewards=[{name: exact_match}, {name: format, pattern: '[0-4].*'}]",  # half of the random digits match it
    "learner.least_step_seconds=0.5",
    "learner.minibatches=2",
    "evaluation.every_steps=3",
    "learner.peak_tflops=0.1",  # about that of a core: a utilization without a GPU
    "learner.checkpoint.every_steps=5",
    "console.enabled=false",  # it is no pod with metrics
)
AGENT = f"{{kind: program, command: ['{{python}}', {Path(__file__).with_name('live_agent.py')}]}}"
# `critic` has a critic, corrections that mask, a reference, a curriculum and a teacher; `routers` has a
# mixture of experts, three sources, one of them with an agent, and drops groups.
CRITIC = (
    "staleness.max_staleness=2",
    "algorithm={preset: grpo, advantage: {kind: gae}, objective: {kind: ppo_clip, clip_low: 0.2, "
    "clip_high: 0.2, anchor: batch}, correction: {kind: icepop}, kl: {coefficient: 0.01}, "
    "shaping: {dynamic_sampling: {}, goldilocks: {low: 0.3, high: 0.7}}, "
    "distillation: {kind: reverse, top_k: 4, reward_weight: 1.0}}",
)
ROUTERS = (
    "staleness.max_staleness=1",
    "model.tiny.experts=4",
    "data={kind: mixture, of: [{kind: addition, digits: 1, share: 4}, "
    "{kind: sort_digits, length: 2, share: 2}, "
    f"{{kind: addition, name: asked, digits: 1, environment: {AGENT}}}]}}",
    "algorithm={preset: grpo, objective: {kind: rspo}, correction: {kind: tis}}",
)
RELEASES = {"critic": CRITIC, "routers": ROUTERS}
PODS = {"critic": 7, "routers": 6}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scraped:
    """A Prometheus that has scraped runs since `start`."""

    url: str
    start: float
    runs: Mapping[str, Run]


@contextmanager
def scraped(folder: Path) -> Iterator[Scraped]:
    """Start both runs with their pods, scraped every second; stop all of them when the context ends."""
    with ExitStack() as stack:
        url = stack.enter_context(QUICKSTART.prometheus(folder, scrape_seconds=1))
        make_tiny_model(TinyModel(layers=1, width=32, heads=1, max_tokens=64), folder / "teacher", seed=7)
        extra_settings = {"critic": (f"teacher.path={folder / 'teacher'}",), "routers": ()}
        runs = {
            release: stack.enter_context(
                running(_made(folder / release), *QUICK, *settings, *extra_settings[release], steps=100_000)
            )
            for release, settings in RELEASES.items()
        }
        start = time.time()
        for release, run in runs.items():
            run.wait_until("pods", lambda run=run, count=PODS[release]: len(_pods(run)) == count, seconds=240)
        for release, run in runs.items():
            QUICKSTART.write_targets(folder, release, _pods(run), POOLS)
        yield Scraped(url=url, start=start, runs=runs)


def _pods(run: Run) -> list[Path]:
    return sorted((run.run_dir / "pods").glob("*.json"))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
