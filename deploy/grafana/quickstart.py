"""Draws the dashboards of docs/dashboards from a run of the quickstart, which a local Prometheus scrapes.

    python deploy/grafana/quickstart.py --minutes 6 --output docs/dashboards

Needs `prometheus` on the PATH, and two CPU cores that nothing else uses.
"""

import argparse
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "charts/slipstream/files/rules"
NAMESPACE, RELEASE = "rl", "quickstart"
PODS = 5
START_SECONDS = 300.0
SCRAPE_SECONDS = 2


def main() -> None:
    """Run, draw, and stop the run. Errors: RuntimeError when a process does not start in time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--minutes", type=float, default=6.0, help="of training before the pictures are drawn"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="setting of the run")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with (
            prometheus(folder, scrape_seconds=SCRAPE_SECONDS) as url,
            quickstart(folder, options.set) as run_dir,
        ):
            started = time.time()
            write_targets(folder, RELEASE, pods(run_dir), {"rollout-0": "default"})
            time.sleep(options.minutes * 60)
            draw(url, minutes=(time.time() - started) / 60, output=options.output)


def draw(url: str, *, minutes: float, output: Path) -> None:
    """Have preview.py draw every dashboard."""
    labels = ["--namespace", NAMESPACE, "--release", RELEASE]
    times = ["--minutes", str(minutes), "--scrape-seconds", str(SCRAPE_SECONDS)]
    preview = [sys.executable, str(Path(__file__).with_name("preview.py")), url]
    subprocess.run([*preview, *labels, *times, "--output", str(output)], check=True)


@contextmanager
def quickstart(folder: Path, further: Sequence[str] = ()) -> Iterator[Path]:
    """The run directory of a quickstart whose pods are all ready; the run is stopped with the block.

    further: settings, as KEY=VALUE.
    """
    runs = folder / "runs"
    settings = [f"runs_dir={runs}", "learner.steps=1000000", "console.enabled=false", *further]
    options = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "slipstream.cli", "run", "examples/addition.yaml", "--plain", *options]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        wait_for("the pods of the run", process, lambda: len(pods(runs / "latest")) == PODS)
        yield runs / "latest"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=120)


def pods(run_dir: Path) -> list[Path]:
    """The files that the ready pods of a run have written, one each."""
    return sorted((run_dir / "pods").glob("*.json"))


def write_targets(folder: Path, release: str, pod_files: Sequence[Path], pools: Mapping[str, str]) -> None:
    """Tell Prometheus the metrics pages of a run's pods, with the labels that the chart's PodMonitors set.

    pools: pod → pool, for rollouts.
    """
    targets = []
    for file in pod_files:
        component = file.stem.split("-")[0]
        labels = {
            "namespace": NAMESPACE,
            "release": release,
            "component": component,
            "container": component,
            "pod": f"{release}-{file.stem}",
        }
        if file.stem in pools:
            labels["pool"] = pools[file.stem]
        port = json.loads(file.read_text())["metrics_port"]
        targets.append({"targets": [f"127.0.0.1:{port}"], "labels": labels})
    partial = folder / f"{release}.partial"
    partial.write_text(json.dumps(targets))
    partial.rename(folder / f"targets-{release}.json")


@contextmanager
def prometheus(folder: Path, *, scrape_seconds: int) -> Iterator[str]:
    """The URL of a Prometheus with the rules of the chart, which scrapes `targets-*.json` of the folder."""
    discovery = {"files": [str(folder / "targets-*.json")], "refresh_interval": "1s"}
    interval = f"{scrape_seconds}s"
    config = {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": [str(RULES / "*.yaml")],
        "scrape_configs": [{"job_name": f"{NAMESPACE}/slipstream", "file_sd_configs": [discovery]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = {
        "config.file": folder / "prometheus.yml",
        "storage.tsdb.path": folder / "tsdb",
        "web.listen-address": f"127.0.0.1:{port}",
    }
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus", *(f"--{name}={value}" for name, value in options.items())], stdout=log, stderr=log
        )
    try:
        wait_for("Prometheus", process, lambda: answers(port))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=20)


def answers(port: int) -> bool:
    """Whether a server accepts connections at the port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def wait_for(name: str, process: "subprocess.Popen[bytes]", ready: Callable[[], bool]) -> None:
    """Wait until `ready()` is true. Errors: RuntimeError when the process ends or the time is over."""
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        if process.poll() is not None:
            raise RuntimeError(f"the process of {name} ended with status {process.returncode}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{name}: not ready within {START_SECONDS:.0f} s")
        time.sleep(0.5)


if __name__ == "__main__":
    main()
