"""The kinds of panels of the dashboards, with the builders of grafana-foundation-sdk."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.builders import heatmap as heatmap_builders
from grafana_foundation_sdk.builders import prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.models import common, dashboard, heatmap
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
GREEN, YELLOW, RED, BLUE = "green", "yellow", "red", "blue"
LETTERS = "ABCDEFGHIJ"
Steps = Sequence[tuple[float | None, str]]
"""Colours by value: each applies from its bound upwards; the first bound is None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query, and the legend of its series."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel without a position. Widths are in columns of 24, heights in Grafana's units."""

    title: str
    builder: Any
    width: int
    height: int = 8


def lines(
    title: str,
    description: str,
    *queries: Query,
    unit: str,
    width: int = 8,
    stacked: bool = False,
    low: float | None = None,
    high: float | None = None,
    steps: Steps = (),
    colors: Mapping[str, str] | None = None,
) -> Panel:
    """Values over time; `low` and `high` are where the axis ends at least, `steps` are drawn as lines.

    `colors` are those of series by their names; the others have what is next in Grafana's palette.
    """
    builder = _described(timeseries.Panel(), title, description, queries, unit=unit)
    builder.legend(
        common_builders.VizLegendOptions()
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    builder.tooltip(_all_series()).line_width(1).fill_opacity(40 if stacked else 8)
    builder.show_points(common.VisibilityMode.AUTO).span_nulls(False)
    if stacked:
        builder.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    if low is not None:
        builder.axis_soft_min(low)
    if high is not None:
        builder.axis_soft_max(high)
    if steps:
        builder.thresholds(_thresholds(steps)).thresholds_style(
            common_builders.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        )
    for name, color in (colors or {}).items():
        fixed = {"mode": "fixed", "fixedColor": color}
        builder.override_by_name(name, [dashboard.DynamicConfigValue(id_val="color", value=fixed)])
    return Panel(title=title, builder=builder, width=width)


def number(
    title: str,
    description: str,
    expr: str,
    *,
    unit: str,
    decimals: int | None = None,
    steps: Steps = ((None, GREEN),),
    names: Mapping[int, tuple[str, str]] | None = None,
    limit: Query | None = None,
) -> Panel:
    """The last value, large, over its course; `names` gives some values a text and a colour.

    `limit`: a query whose last value takes the place of `steps`: green below, red from there on; `steps` hold
    where it has no value.
    """
    queries = [Query(expr=expr), *([limit] if limit else [])]
    builder = _described(stat.Panel(), title, description, queries, unit=unit)
    if limit is not None:
        builder.with_transformation(_red_from(limit))
    builder.thresholds(_thresholds(steps)).color_mode(common.BigValueColorMode.VALUE)
    builder.graph_mode(common.BigValueGraphMode.AREA).no_value("none yet")
    builder.reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
    if decimals is not None:
        builder.decimals(decimals)
    if names is not None:
        builder.mappings(_mappings(names))
    return Panel(title=title, builder=builder, width=4, height=4)


def heat(title: str, description: str, expr: str, *, unit: str, width: int = 12) -> Panel:
    """Return a heatmap of the distribution of a histogram over time."""
    query = Query(expr=expr, legend="{{le}}")
    builder = _described(heatmap_builders.Panel(), title, description, [query], unit="short")
    builder.calculate(False).cell_gap(1).show_legend()
    builder.y_axis(heatmap_builders.YAxisConfig().unit(unit).axis_placement(common.AxisPlacement.LEFT))
    builder.color(
        heatmap_builders.HeatmapColorOptions()
        .mode(heatmap.HeatmapColorMode.SCHEME)
        .scheme("Blues")
        .scale(heatmap.HeatmapColorScale.EXPONENTIAL)
        .exponent(0.5)
        .steps(64)
        .reverse(True)
    )
    return Panel(title=title, builder=builder, width=width)


def states(title: str, description: str, query: Query, *, names: Mapping[int, tuple[str, str]]) -> Panel:
    """Return a band of colours per series, which shows its state; `names` are the states by value."""
    builder = _described(statetimeline.Panel(), title, description, [query], unit="none")
    builder.mappings(_mappings(names)).show_value(common.VisibilityMode.NEVER).row_height(0.8)
    builder.merge_values(True).fill_opacity(80).line_width(0)
    return Panel(title=title, builder=builder, width=24)


def _described(builder: Any, title: str, description: str, queries: Sequence[Query], *, unit: str) -> Any:
    """Set the options that all panels have."""
    builder.title(title).description(description).unit(unit).datasource(SOURCE)
    heated = isinstance(builder, heatmap_builders.Panel)
    for letter, query in zip(LETTERS[: len(queries)], queries, strict=True):
        target = prometheus.Dataquery().expr(query.expr).ref_id(letter).legend_format(query.legend).range()
        builder.with_target(target.format(PromQueryFormat.HEATMAP if heated else PromQueryFormat.TIME_SERIES))
    return builder


def _thresholds(steps: Steps) -> Any:
    made = [dashboard.Threshold(value=value, color=color) for value, color in steps]
    return dashboard_builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(made)


def _red_from(limit: Query) -> dashboard.DataTransformerConfig:
    """Grafana's "config from query results": the second query becomes the threshold, and is not shown."""
    mapping = {"fieldName": limit.legend, "handlerKey": "threshold1"}
    options = {"configRefId": LETTERS[1], "mappings": [mapping]}
    return dashboard.DataTransformerConfig(id_val="configFromData", options=options)


def _mappings(names: Mapping[int, tuple[str, str]]) -> list[Any]:
    options = {
        str(value): dashboard.ValueMappingResult(text=text, color=color, index=index)
        for index, (value, (text, color)) in enumerate(names.items())
    }
    return [dashboard.ValueMap(options=options)]


def _all_series() -> Any:
    return (
        common_builders.VizTooltipOptions()
        .mode(common.TooltipDisplayMode.MULTI)
        .sort(common.SortOrder.DESCENDING)
    )
