"""Every query of every panel has data of live runs, through a real Prometheus."""

import math
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from dashboards.boards import FOLDER, NAMES, ask, panels
from dashboards.live import NAMESPACE, RELEASES, Scraped, scraped

pytestmark = pytest.mark.chart
STEPS = 12
"""Steps of each run before its panels are read: enough for some evaluations and filtered groups."""
RECORDED = (
    "count(slipstream:demand_groups_per_second and on (release) slipstream:active_share "
    'and on (release) slipstream:pressure{pool="spot"} and on (release) slipstream:clip_fraction_limit)'
)
"""The number of runs with values of the recording rules, which are evaluated every 15 or 30 seconds."""
SILENT = {
    "fleet": {
        ("Key-value cache", "A"): "the emulated engine has no cache",
        ("Preempted requests", "A"): "the emulated engine has no cache",
        ("Calls of tools", "A"): "the emulated engine writes no calls",
        ("Calls by tool", "A"): "the emulated engine writes no calls",
        ("Time of slow calls of tools", "A"): "the emulated engine writes no calls",
        ("Replicas", "A"): "nobody runs kube-state-metrics here",
        ("Replicas", "B"): "nobody runs kube-state-metrics here",
        ("Replicas", "C"): "nobody runs kube-state-metrics here",
        ("Replicas", "D"): "nobody runs kube-state-metrics here",
    },
    "hardware": {
        ("Claims in use", "A"): "there are no claims without Kubernetes",
        ("GPU utilization", "A"): "nobody runs dcgm-exporter here",
        ("GPU memory", "A"): "nobody runs dcgm-exporter here",
        ("NVLink", "A"): "nobody runs dcgm-exporter here",
        ("XID errors", "A"): "nobody runs dcgm-exporter here",
        ("Restarts", "A"): "nobody runs kube-state-metrics here",
        ("Out-of-memory restarts", "A"): "nobody runs kube-state-metrics here",
    },
    "verifier": {
        ("Cached verdicts", "A"): "its rewards are too cheap to remember",
        ("Children replaced", "A"): "its rewards need no children",
        ("Layers of isolation", "A"): "its rewards run no programs",
        ("Fork servers lost", "A"): "its rewards run no programs",
        ("Programs of the tool python", "A"): "the emulated engine writes no programs",
        ("Time of a program", "A"): "the emulated engine writes no programs",
        ("Time of a program", "B"): "the emulated engine writes no programs",
    },
    "replay": {
        ("Memory used", "A"): "the embedded Redis has no limit",
        ("Prompts skipped", "B"): "no prompt loses three leases",
    },
    "staleness": {
        ("Logprobs against the learner", "A"): "the emulated engine has no model",
        ("Updates by kind", "B"): "the emulated engine has no parameters to which a delta is applied",
    },
}
"""Queries without data in such runs, by dashboard: panel and letter, and why."""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    with scraped(tmp_path_factory.mktemp("live")) as scraped_runs:
        for run in scraped_runs.runs.values():
            run.wait_until("steps", lambda run=run: run.version() >= STEPS, seconds=400)
            run.wait_until(
                "recorded rules", lambda: a_while_ago(scraped_runs, RECORDED) == {len(RELEASES)}, seconds=90
            )
        yield scraped_runs


def a_while_ago(watched: Scraped, expr: str) -> set[float]:
    """Return the values that a query had five seconds ago."""
    end = time.time() - 5.0
    results = ask.ask(watched.url, expr, start=end, end=end, step=1.0)
    return {value for series in results for value in series.values}


def answers(watched: Scraped, target: Mapping[str, Any]) -> list[Any]:
    """Return the series of a target, of all runs."""
    results: list[Any] = []
    for release in RELEASES:
        expr = ask.fill_in(target["expr"], variables(release))
        results += ask.ask(watched.url, expr, start=watched.start, end=time.time(), step=1.0)
    return results


def variables(release: str) -> dict[str, str]:
    chosen = {"namespace": NAMESPACE, "release": release, "pool": ".*", "pod": ".*"}
    return {**chosen, "window": "1m", "__rate_interval": "10s"}


@pytest.mark.parametrize("name", NAMES)
def test_every_query_has_numbers_and_the_labels_of_its_legend(watched: Scraped, name: str) -> None:
    silent = set()
    for panel in panels(name):
        for target in panel["targets"]:
            results = answers(watched, target)
            for series in results:
                ask.legend(target["legendFormat"], series)
            if not any(math.isfinite(value) for series in results for value in series.values):
                silent.add((panel["title"], target["refId"]))
    assert silent == set(SILENT.get(name, {}))


def test_the_previews_are_drawn_from_a_live_run(watched: Scraped, tmp_path: Path) -> None:
    script = [
        sys.executable,
        str(FOLDER / "preview.py"),
        watched.url,
        "--minutes",
        "2",
        "--scrape-seconds",
        "1",
    ]
    choice = ["--namespace", NAMESPACE, "--release", "critic", "--output", str(tmp_path)]
    subprocess.run([*script, *choice], check=True, timeout=300)
    assert {file.name for file in tmp_path.iterdir()} == {f"{name}.png" for name in NAMES}


def test_the_choices_of_a_dashboard_are_the_live_runs_and_pools(watched: Scraped) -> None:
    def values(expr: str, label: str) -> set[str]:
        end = time.time()
        return {one.labels[label] for one in ask.ask(watched.url, expr, start=end, end=end, step=1.0)}

    assert values("slipstream_announced_version", "namespace") == {NAMESPACE}
    assert values("slipstream_announced_version", "release") == set(RELEASES)
    assert values('slipstream_worker_state{release="critic"}', "pool") == {"on-demand", "spot"}
