"""docs/weights.md: the timeline of an update has the times that the figure measured."""

import re
from pathlib import Path

from docs.markdown import table

DOCS = Path(__file__).resolve().parents[2] / "docs"


SECTIONS = {
    "in pause": "in full, in the pause",
    "beside": "in full, beside the weights",
    "delta": "as a delta, written in place",
}


def test_the_timeline_has_the_times_of_the_figure() -> None:
    page = (DOCS / "weights.md").read_text("utf-8")
    figure = (DOCS / "benchmarks.md").read_text("utf-8").split("<!-- figure: pause -->")[1]
    without_request = figure.partition("| size | sent |")[0]
    rows = {
        sent: [int(cell.rstrip(" ms").replace(",", "")) for cell in times]
        for size, network, sent, _sent_mib, *times in table(without_request, first="size")
        if (size, network) == ("992 MiB", "loopback")
    }
    (gantt,) = re.findall(r"^```mermaid\ngantt\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    sections = re.findall(r"section (.+)\n((?: +.+ : .+\n)+)", gantt)
    assert [name for name, _ in sections] == list(SECTIONS)
    for name, lines in sections:
        copy, served, pause = rows[SECTIONS[name]]
        spans = [tuple(map(int, span)) for span in re.findall(r"(\d+), (\d+)\n", lines)]
        if len(spans) == 2:  # the pause begins with the transfer
            assert spans == [(0, served - pause), (served - pause, served)]
        else:
            assert spans == [(0, copy), (copy, served - pause), (served - pause, served)]
