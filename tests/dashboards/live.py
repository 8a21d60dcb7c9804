"""Two small runs side by side, and a real Prometheus that scrapes their pods as it would in a cluster."""

import json
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from dashboards.boards import RULES
from slipstream.config import TinyModel
from slipstream.learner.policy.tiny import make_tiny_model
from system.driver import Run, running

NAMESPACE = "rl"
POOLS = {"rollout-0": "on-demand", "rollout-1": "spot"}
QUICK = (
    "rollout.engine=emulated",
    "rollout.emulated.median_seconds=0.5",
    "rollout.workers=2",
    "rollout.max_groups=12",
    "rewards=[{name: exact_match}, {name: format, pattern: '[0-4].*'}]",  # random digits differ in the second
    "learner.least_step_seconds=0.5",
    "learner.minibatches=2",
    "evaluation.every_steps=3",
    "learner.peak_tflops=0.1",  # of a core; it gives the utilization a value without a GPU
    "learner.checkpoint.every_steps=5",
)
# One with a critic, corrections that mask, a reference, a curriculum and a teacher; one with routers that
# drops groups.
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
    "algorithm={preset: grpo, objective: {kind: rspo}, correction: {kind: tis}}",
)
RELEASES = {"critic": CRITIC, "routers": ROUTERS}
PODS = {"critic": 6, "routers": 5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scraped:
    """A Prometheus that has watched runs from `start` to now."""

    url: str
    start: float
    runs: Mapping[str, Run]


@contextmanager
def scraped(folder: Path) -> Iterator[Scraped]:
    """Both runs with their workers, scraped every second; everything ends with the block."""
    with ExitStack() as stack:
        url = stack.enter_context(prometheus(folder))
        make_tiny_model(TinyModel(layers=1, width=32, heads=1, max_tokens=64), folder / "teacher", seed=7)
        given = {"critic": (f"teacher.path={folder / 'teacher'}",), "routers": ()}
        runs = {
            release: stack.enter_context(
                running(_made(folder / release), *QUICK, *settings, *given[release], steps=100_000)
            )
            for release, settings in RELEASES.items()
        }
        start = time.time()
        for release, run in runs.items():
            run.wait_until("pods", lambda run=run, count=PODS[release]: len(_pods(run)) == count, seconds=240)
        for release, run in runs.items():
            _watch(folder, release, run)
        yield Scraped(url=url, start=start, runs=runs)


@contextmanager
def prometheus(folder: Path) -> Iterator[str]:
    """A Prometheus with the project's rules, scraping what `targets-*.json` in the folder name; its URL."""
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES / "*.yaml")],
        "scrape_configs": [
            {
                "job_name": f"{NAMESPACE}/slipstream",
                "file_sd_configs": [{"files": [str(folder / "targets-*.json")], "refresh_interval": "1s"}],
            }
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=(folder / "prometheus.log").open("w"),
        stderr=subprocess.STDOUT,
    )
    try:
        yield _ready(f"http://127.0.0.1:{port}", process, folder / "prometheus.log")
    finally:
        process.terminate()
        process.wait(timeout=20)


def _ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> str:
    for _ in range(300):
        assert process.poll() is None, log.read_text()
        try:
            urlopen(f"{url}/-/ready", timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return url
    raise AssertionError(f"Prometheus is not ready after 30 s:\n{log.read_text()}")


def _watch(folder: Path, release: str, run: Run) -> None:
    """Have the pods of a run scraped, with the labels that a PodMonitor gives them."""
    targets = [
        {
            "targets": [f"127.0.0.1:{run.pod(pod)['metrics_port']}"],
            "labels": {
                "namespace": NAMESPACE,
                "release": release,
                "component": pod.split("-")[0],
                "pod": f"{release}-{pod}",
                "container": pod.split("-")[0],
                **({"pool": POOLS[pod]} if pod in POOLS else {}),
            },
        }
        for pod in _pods(run)
    ]
    partial = folder / f"{release}.partial"
    partial.write_text(json.dumps(targets))
    partial.rename(folder / f"targets-{release}.json")


def _pods(run: Run) -> list[str]:
    return sorted(file.stem for file in (run.run_dir / "pods").glob("*.json"))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
