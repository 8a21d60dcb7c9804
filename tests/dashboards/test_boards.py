"""The committed dashboards are those that deploy/grafana builds; their layout, links and descriptions."""

import re
import subprocess
import sys
from itertools import combinations

import pytest
from dashboards.boards import BOARDS, DASHBOARDS, FOLDER, NAMES, ROOT, expressions, panels

KINDS = {"heatmap", "stat", "state-timeline", "timeseries"}
"""The kinds of panels; Grafana has removed Angular, and with it graph, singlestat and table-old."""
BUILT_IN = {"__rate_interval"}


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    across = one["x"] < other["x"] + other["w"] and other["x"] < one["x"] + one["w"]
    return across and one["y"] < other["y"] + other["h"] and other["y"] < one["y"] + one["h"]


def test_the_committed_files_equal_the_built_ones() -> None:
    built = subprocess.run(
        [sys.executable, str(FOLDER / "build.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert (built.returncode, built.stderr) == (0, "")


def test_the_folder_has_the_seven_dashboards_and_no_other_file() -> None:
    assert sorted(file.name for file in DASHBOARDS.iterdir()) == [f"{n}.json" for n in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_has_a_link_from_its_name(name: str) -> None:
    board = BOARDS[name]
    assert board["uid"] == f"slipstream-{name}"
    assert board["description"]
    (link,) = board["links"]
    assert (link["type"], link["tags"], link["includeVars"], link["keepTime"]) == (
        "dashboards",
        board["tags"],
        True,
        True,
    )
    everything = board["panels"]
    for key in ("id", "title"):
        seen = [panel[key] for panel in everything]
        assert len(set(seen)) == len(seen), f"{name}: two panels have one {key}"


@pytest.mark.parametrize("name", NAMES)
def test_panels_are_on_the_grid_without_overlap_and_below_a_heading(name: str) -> None:
    everything = BOARDS[name]["panels"]
    places = [panel["gridPos"] for panel in everything]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= 24 and place["w"] > 0 for place in places)
    assert not [pair for pair in combinations(places, 2) if overlap(*pair)]
    assert everything[0]["type"] == "row"
    headings = [i for i, panel in enumerate(everything) if panel["type"] == "row"]
    assert all(
        below - above > 1 for above, below in zip(headings, [*headings[1:], len(everything)], strict=True)
    )
    order = [(place["y"], place["x"]) for place in places]
    assert order == sorted(order)


@pytest.mark.parametrize("name", NAMES)
def test_every_line_of_panels_reaches_the_right_edge(name: str) -> None:
    ends: dict[int, int] = {}
    for panel in BOARDS[name]["panels"]:
        place = panel["gridPos"]
        ends[place["y"]] = max(ends.get(place["y"], 0), place["x"] + place["w"])
    assert {y: end for y, end in ends.items() if end != 24} == {}


@pytest.mark.parametrize("name", NAMES)
def test_a_panel_has_a_description_a_unit_and_a_data_source(name: str) -> None:
    for panel in panels(name):
        title = panel["title"]
        assert panel["type"] in KINDS, title
        assert len(panel["description"]) > len(title), title
        assert panel["description"].endswith("."), title
        assert panel["fieldConfig"]["defaults"]["unit"], title
        assert panel["type"] != "heatmap" or panel["options"]["yAxis"]["unit"], title
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, title
        letters = [target["refId"] for target in panel["targets"]]
        assert letters == list("ABCDEFGHIJ")[: len(letters)] != [], title
        if panel["type"] != "stat":
            assert all(target["legendFormat"] for target in panel["targets"]), title


@pytest.mark.parametrize("name", NAMES)
def test_every_variable_is_declared_and_used(name: str) -> None:
    variables = BOARDS[name]["templating"]["list"]
    declared = [variable["name"] for variable in variables]
    assert declared[:3] == ["datasource", "namespace", "release"]
    queries = [str(variable["query"]) for variable in variables]
    used = set(re.findall(r"\$([a-z_]\w*)", " ".join([*expressions(name), *queries])))
    assert used - BUILT_IN == set(declared) - {"datasource"}


@pytest.mark.parametrize("name", ["fleet", "staleness"])
def test_a_dashboard_offers_a_choice_of_pools_and_pods(name: str) -> None:
    variables = {variable["name"]: variable for variable in BOARDS[name]["templating"]["list"]}
    for each in ("pool", "pod"):
        assert variables[each]["multi"]
        assert variables[each]["allValue"] == ".*"


@pytest.mark.parametrize("name", NAMES)
def test_the_documents_explain_every_dashboard_and_show_a_picture(name: str) -> None:
    text = (ROOT / "docs" / "dashboards.md").read_text()
    title = BOARDS[name]["title"].removeprefix("Slipstream / ")
    section = text.split(f"\n## {title}\n")[1].split("\n## ")[0]
    assert f"![{title}](dashboards/{name}.png)" in section
    picture = ROOT / "docs" / "dashboards" / f"{name}.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 300_000
    bold = set(re.findall(r"\*\*([A-Z][^*]+)\*\*", section.replace("\n", " ")))
    assert {re.sub(r"\s+", " ", word) for word in bold} <= {panel["title"] for panel in panels(name)}
