"""Draw the dashboards from the data of a Prometheus, for documents, by the queries and the layout of panels.

python deploy/grafana/preview.py URL --namespace NS --release NAME --minutes 30 --output docs/dashboards
"""

import argparse
import json
import time
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
from ask import ask, fill_in
from drawing import INK, draw
from PIL import Image

FOLDER = Path(__file__).parents[2] / "charts/slipstream/files/dashboards"
WIDTH_INCHES, INCHES_A_UNIT, DOTS_AN_INCH = 16.0, 0.27, 80
POINTS = 240
INTERVAL_SECONDS = 15.0
LEFT, RIGHT, BELOW, ABOVE = 0.035, 0.01, 0.75, 0.95
"""The margins of the axes of a panel: shares of the width, and units of height."""


def main() -> None:
    """Write a PNG for every dashboard. Errors: OSError when Prometheus does not answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of Prometheus")
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--release", required=True)
    parser.add_argument("--minutes", type=float, default=30.0, help="what to show, up to now")
    parser.add_argument("--scrape-seconds", type=float, default=INTERVAL_SECONDS, help="between two scrapes")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    matplotlib.use("Agg")
    step = max(options.minutes * 60 / POINTS, 1.0)
    variables = {
        **{"namespace": options.namespace, "release": options.release, "pool": ".*", "pod": ".*"},
        **{"window": f"{max(60, round(10 * step))}s"},
        "__rate_interval": f"{max(4 * options.scrape_seconds, step + options.scrape_seconds):.0f}s",
    }
    options.output.mkdir(parents=True, exist_ok=True)
    for file in sorted(FOLDER.glob("*.json")):
        end = time.time()
        picture = paint(
            json.loads(file.read_text()),
            lambda expr, end=end: ask(
                options.url, fill_in(expr, variables), start=end - options.minutes * 60, end=end, step=step
            ),
        )
        picture.save(options.output / f"{file.stem}.png", optimize=True)


def paint(board: Mapping[str, Any], answer: Any) -> Image.Image:
    """Return the image of a dashboard; `answer` returns the series of an expression."""
    from matplotlib.figure import Figure

    units = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"]) + 1
    figure = Figure(figsize=(WIDTH_INCHES, units * INCHES_A_UNIT), dpi=DOTS_AN_INCH, facecolor="white")
    figure.text(0.005, 1 - 0.7 / units, board["title"], fontsize=13, color=INK, va="center")
    for panel in board["panels"]:
        x, y, w, h = (panel["gridPos"][key] for key in "xywh")
        if panel["type"] == "row":
            figure.text(0.005, 1 - (y + 1.6) / units, panel["title"], fontsize=10, color=INK, va="center")
            continue
        bottom = 1 - (y + 1 + h - BELOW) / units
        axes = figure.add_axes(
            (x / 24 + LEFT, bottom, w / 24 - LEFT - RIGHT, (h - BELOW - ABOVE) / units), facecolor="white"
        )
        draw(axes, panel, [(target, answer(target["expr"])) for target in panel["targets"]])
        axes.xaxis.set_major_formatter(lambda value, _: time.strftime("%H:%M:%S", time.gmtime(value)))
        axes.locator_params(axis="x", nbins=max(2, w // 3))
    image = BytesIO()
    figure.savefig(image, format="png")
    return Image.open(image).convert("RGB").quantize(256)


if __name__ == "__main__":
    main()
