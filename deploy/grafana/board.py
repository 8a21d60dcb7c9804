"""A dashboard as a whole: its variables, its links to the others, and rows of panels laid out on a grid."""

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from compact import compact
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard
from panels import RED, SOURCE, Panel

COLUMNS = 24
TAG = "slipstream"
EVERYTHING = dashboard.VariableOption(text=["All"], value=["$__all"], selected=True)
RELEASES = 'slipstream_announced_version{namespace="$namespace"}'
ROLLOUTS = 'slipstream_worker_state{namespace="$namespace", release="$release"'
FIRING = 'ALERTS{alertname=~"Slipstream.*", alertstate="firing", namespace="$namespace", release="$release"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Panels under a heading, from left to right, in as many lines as they need."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One dashboard. `name` is that of its file; `rollouts` adds variables that select pools and rollouts."""

    name: str
    title: str
    description: str
    rows: Sequence[Row]
    rollouts: bool = False
    steps: bool = True
    """Whether a panel averages over steps of the learner, so that the dashboard has the variable `window`."""


def render(board: Board) -> str:
    """Return the JSON of a dashboard, the same bytes every time."""
    builder = (
        builders.Dashboard(f"Slipstream / {board.title}")
        .uid(f"slipstream-{board.name}")
        .description(board.description)
        .tags([TAG])
        .timezone("browser")
        .time("now-3h", "now")
        .refresh("30s")
        .readonly()
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .annotation(_alerts())
        .link(_links())
    )
    for variable in _variables(board):
        builder.with_variable(variable)
    built = builder.build()
    built.panels = _lay_out(board.rows)
    for shown in (*built.links, *built.annotations.list_val):
        shown.placement = None  # above the panels; the SDK would put them into a menu
    return compact(json.loads(json.dumps(built, cls=JSONEncoder, sort_keys=True))) + "\n"


def _lay_out(rows: Sequence[Row]) -> list[Any]:
    """Return the panels with their positions. An id depends on the title alone, so it stays the same."""
    placed: list[Any] = []
    y = 0
    for row in rows:
        place = dashboard.GridPos(h=1, w=COLUMNS, x=0, y=y)
        placed.append(builders.Row(row.title).id(_number(row.title)).grid_pos(place).build())
        x, y, height = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, height = 0, y + height, 0
            place = dashboard.GridPos(h=panel.height, w=panel.width, x=x, y=y)
            placed.append(panel.builder.id(_number(panel.title)).grid_pos(place).build())
            x, height = x + panel.width, max(height, panel.height)
        y += height
    return placed


def _number(title: str) -> int:
    return zlib.crc32(title.encode()) % 1_000_000 + 1


def _variables(board: Board) -> list[Any]:
    variables: list[Any] = [
        builders.DatasourceVariable("datasource").label("Data source").type("prometheus"),
        _choice("namespace", "label_values(slipstream_announced_version, namespace)"),
        _choice("release", f"label_values({RELEASES}, release)"),
    ]
    if board.rollouts:
        variables += [
            _several("pool", f"label_values({ROLLOUTS}}}, pool)"),
            _several("pod", f'label_values({ROLLOUTS}, pool=~"$pool"}}, pod)'),
        ]
    if board.steps:
        variables.append(
            builders.IntervalVariable("window")
            .label("Averaged over")
            .description("Window for metrics that the learner counts once per step; choose several steps.")
            .values("1m,5m,10m,30m,2h")
            .auto(True)
            .min_interval("5m")
            .step_count(60)
            .current(dashboard.VariableOption(text="auto", value="$__auto_interval_window", selected=True))
        )
    return variables


def _choice(name: str, query: str) -> Any:
    return (
        builders.QueryVariable(name)
        .label(name.capitalize())
        .datasource(SOURCE)
        .query(query)
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
    )


def _several(name: str, query: str) -> Any:
    return _choice(name, query).multi(True).include_all(True).all_value(".*").current(EVERYTHING)


def _links() -> Any:
    return (
        builders.DashboardLink("Slipstream")
        .type(dashboard.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .include_vars(True)
        .keep_time(True)
    )


def _alerts() -> Any:
    """Return the annotation that draws a red line when an alert begins to fire."""
    return (
        builders.AnnotationQuery()
        .name("Alerts")
        .datasource(SOURCE)
        .enable(True)
        .icon_color(RED)
        .expr(FIRING)
        .title_format("{{alertname}}")
    )
