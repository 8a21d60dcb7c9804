"""Write the dashboards: `python deploy/grafana/build.py`. With --check, only name those out of date."""

import argparse
import sys
from pathlib import Path

import fleet
import hardware
import losses
import overview
import replay
import staleness
import verifier
from board import render

FOLDER = Path(__file__).parents[2] / "charts/slipstream/files/dashboards"
MODULES = (overview, staleness, losses, fleet, replay, verifier, hardware)
BOARDS = tuple(module.BOARD for module in MODULES)


def main() -> int:
    """Write or check every file; the exit status is 1 when a check fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is not as built")
    check = parser.parse_args().check
    rendered = {FOLDER / f"{board.name}.json": render(board) for board in BOARDS}
    stale = [file for file, text in rendered.items() if not file.exists() or file.read_text() != text]
    strange = [file for file in FOLDER.glob("*.json") if file not in rendered]
    if check:
        for file in (*stale, *strange):
            print(f"{file} is out of date: run `make dashboards`", file=sys.stderr)
        return int(bool(stale or strange))
    for file, text in rendered.items():
        file.write_text(text)
    for file in strange:
        file.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
