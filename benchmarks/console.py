"""The console on a run of 10,000 steps and 1,000,000 completions: how long a visitor waits, in a browser.

    python -m benchmarks.console [--steps N] [--completions N] [--tokens N]

open    From the start of the program of the console, and from a click, until a page shows its numbers.
filter  From the address of a filter until the page shows how many completions it selects.
scroll  Frame times while a completion of 32,000 tokens scrolls by a sixth of a window each. The limit is the
        16.7 ms of a screen with 60 Hz; the share of longer frames is what a reader sees as jerks.

Needs Chromium (docker/setup-browser.sh).
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from slipstream.config import SamplesConfig
from slipstream.learner.clients import decode_group
from slipstream.samples.writer import SampleWriter
from slipstream.telemetry.logs import Log

from benchmarks.learner_step.lognormal import lognormal_groups
from benchmarks.ratio import print_ratio
from benchmarks.samples import a_million

FRAME_MILLISECONDS: Final = 1000 / 60
FILTERS: Final = {
    "newest first": "descending=1",
    "largest ratios": "order=largest_ratio&descending=1",
    "clipped, reward below 0.1": "clipped=1&largest_reward=0.1",
    "steps 4,000 to 4,100": "first_step=4000&last_step=4100&order=reward",
    "withheld": "state=withheld",
    "a text in 1 % of them": "text=unusual",
    "a text in none of them": "text=nowhere",
}
SCROLL: Final = """
async () => {
  const times = [];
  let before = performance.now();
  for (let frame = 0; frame < 240; frame++) {
    scrollBy(0, innerHeight / 6);
    await new Promise(requestAnimationFrame);
    times.push(performance.now() - before);
    before = performance.now();
  }
  return times;
}
"""


def write_metrics(run_dir: Path, steps: int) -> None:
    """Write rows with as many numbers as those of a real run."""
    random = Random(0)
    names = [f"metric_{i}" for i in range(150)]
    with (run_dir / "metrics.jsonl").open("w", encoding="utf-8") as stream:
        for step in range(1, steps + 1):
            row = {
                "event": "step",
                "time": 1.79e9 + step,
                "step": step,
                "version": step,
                "reward_mean": random.random(),
                "clip_fraction_low": random.random() / 100,
                "clip_fraction_high": random.random() / 100,
                "tokens_per_second": random.random() * 1e4,
                "staleness_histogram": {
                    age: random.randrange(1000) for age in ("0", "1", "2", "3-4", "5-8", ">8")
                },
                "elapsed_seconds": float(step),
                **{name: random.random() for name in names},
                "by_staleness": {age: {name: random.random() for name in names[:30]} for age in ("1", "2")},
            }
            stream.write(json.dumps(row) + "\n")


def write_long(run_dir: Path, step: int, tokens: int) -> str:
    """Store one completion of so many tokens; return its place in the console."""
    (group,) = lognormal_groups(1, 1, vocabulary=1000, sigma=0.01, shortest=tokens, longest=tokens)
    writer = SampleWriter(
        run_dir,
        SamplesConfig(max_mib=100_000),
        weights={},
        version=step - 1,
        decode=decode_group,
        log=Log(pod="benchmark"),
    )
    writer.put(step, [group], None)
    writer.close()
    return f"completion?step={step}&group={group.group_id}&member=0&colour=logprob"


def seconds(work: Callable[[], object]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print a table and ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--completions", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=32_000)
    arguments = parser.parse_args(argv)
    chromium = shutil.which("chromium")
    if chromium is None:
        print("chromium is not on the PATH: run docker/setup-browser.sh", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        run.mkdir()
        (run / "config.yaml").write_text(f"name: large\nlearner: {{steps: {arguments.steps}}}\n")
        stored = a_million(run, arguments.steps, arguments.completions)
        write_metrics(run, arguments.steps)
        place = write_long(run, arguments.steps + 1, arguments.tokens)
        size = f"{arguments.steps:,} steps and {arguments.completions:,} completions"
        print(f"A run of {size}, {stored / 1e9:.2f} GB.")
        measure(run, chromium, place)
    return 0


def measure(run: Path, chromium: str, place: str) -> None:
    """Open the pages of a run in Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(120_000)
        began = time.perf_counter()
        command = [sys.executable, "-m", "slipstream.console", str(run)]
        console = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert console.stdout is not None
            address = console.stdout.readline().split()[1]
            started = time.perf_counter() - began
            visit = _Visit(page, address)
            opened = seconds(lambda: visit("run", "[data-fact=step]"))
            samples = seconds(lambda: visit("samples", "#total"))
            print("\n| page | seconds |\n|---|---|")
            print(f"| the program starts | {started:.2f} |\n| Run, first visit | {opened:.2f} |")
            print(f"| Run, again | {seconds(lambda: visit('run', '[data-fact=step]')):.2f} |")
            print(f"| Samples, first visit | {samples:.2f} |")
            slowest = 0.0
            for name, query in FILTERS.items():
                took = min(seconds(lambda: visit(f"samples?{query}", "#total")) for _ in range(3))  # noqa: B023
                slowest = max(slowest, took)
                print(f"| {name} | {took:.2f} |")
            visit(place, ".token")
            page.wait_for_timeout(500)
            times = page.evaluate(SCROLL)
        finally:
            console.terminate()
            console.wait()
            browser.close()
    late = sum(each > 1.5 * FRAME_MILLISECONDS for each in times) / len(times)
    print()
    print_ratio("seconds until the run page shows its numbers", opened)
    print_ratio("seconds until the first page of completions", samples)
    print_ratio("seconds of the slowest filter", slowest)
    print_ratio("median frame of a scroll / 16.7 ms", statistics.median(times) / FRAME_MILLISECONDS)
    print_ratio("share of frames that are late", late)


class _Visit:
    """Opens a page of the console, and waits until it shows an element."""

    def __init__(self, page: Any, address: str) -> None:
        self._page = page
        self._address = address

    def __call__(self, place: str, element: str) -> None:
        self._page.goto("about:blank")
        self._page.goto(f"{self._address}#/{place}")
        self._page.locator(element).first.wait_for()


if __name__ == "__main__":
    sys.exit(main())
