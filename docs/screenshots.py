"""Takes the pictures of docs/console.md from a run: python docs/screenshots.py [RUN_DIR]; needs Chromium.

Each page is taken in the light and in the dark theme. The completion is the longest one after the first
quarter of the run, the loss lab compares the step in its middle, and Compare has all runs of its folder.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright
from slipstream.samples.reader import Filter, SampleReader

TARGET = Path(__file__).parent / "console"
WINDOW = {"width": 1360, "height": 850}
DRAWN = {
    "run": "canvas",
    "samples": "#total",
    "completion": ".token",
    "timeline": "canvas.lanes",
    "lab": "#words",
    "compare": "canvas",
}
"""The element of each page that is there once it is drawn."""
LONGEST_MILLISECONDS = 180_000
SETTLE_MILLISECONDS = 1500


def main(run_dir: Path) -> int:
    """Write the pictures; return the exit status."""
    command = [sys.executable, "-m", "slipstream.console", str(run_dir)]
    console = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert console.stdout is not None
        address = console.stdout.readline().split()[1]
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for theme in ("light", "dark"):
                page = browser.new_page(viewport=WINDOW, color_scheme=theme)
                for name, place in places(run_dir).items():
                    take(page, f"{address}#/{place}", name, theme)
    finally:
        console.terminate()
        console.wait()
    return 0


def places(run_dir: Path) -> dict[str, str]:
    """Return the address of each page behind the `#/`."""
    reader = SampleReader(run_dir)
    steps = [row["step"] for row in reader.steps() if row["trained"]]
    (row,) = reader.completions(
        Filter(state="trained", first_step=steps[len(steps) // 4]), order="tokens", descending=True, count=1
    ).rows
    name = f"step={row['step']}&group={row['group']}&member={row['member']}"
    return {
        "run": "run",
        "samples": "samples?state=trained&order=largest_ratio&descending=1",
        "completion": f"completion?{name}&colour=ratio&token=0",
        "timeline": "timeline",
        "lab": f"lab?step={steps[len(steps) // 2]}",
        "compare": f"compare?run={run_dir.name}&runs={','.join(others(run_dir))}",
    }


def others(run_dir: Path) -> list[str]:
    """Return the names of the other runs in the folder of a run."""
    runs = [path for path in sorted(run_dir.parent.iterdir()) if (path / "metrics.jsonl").exists()]
    return [path.name for path in runs if not path.is_symlink() and path != run_dir]


def take(page: Any, url: str, name: str, theme: str) -> None:
    """Write the picture of a page."""
    page.goto("about:blank")
    page.goto(url)
    page.locator(DRAWN[name]).first.wait_for(timeout=LONGEST_MILLISECONDS)
    page.wait_for_timeout(SETTLE_MILLISECONDS)
    TARGET.mkdir(exist_ok=True)
    page.screenshot(path=TARGET / f"{name}-{theme}.png")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/latest").resolve()))
