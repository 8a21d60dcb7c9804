"""`slipstream validate --values` lays over a run what the chart lays over it."""

from typing import Any

import pytest
import yaml
from chart.combinations import SWITCHES, pairwise, release_of
from chart.manifests import of_kind
from chart.rendering import default_values, merge, render
from render import Release, examples, read_release
from slipstream.cli.release.nulls import Section
from slipstream.cli.release.overlay import Names, cluster_tree
from slipstream.config.load import laid_over

RELEASES = [
    *[read_release(file) for file in examples()],
    *[release_of(row) for row in pairwise(SWITCHES)],
]
OF_THE_PODS = ("model", "warmup")
"""With model.mode warmup the chart names the model that is made; the check looks at the run's model.tiny."""


@pytest.mark.parametrize("release", RELEASES, ids=range(len(RELEASES)))
def test_the_keys_that_the_chart_sets_are_those_of_its_configmap(release: Release) -> None:
    values = Section(merge(default_values(), release.values), default_values())
    names = Names(release=release.name, namespace=release.namespace)
    tree = cluster_tree(values, yaml.safe_load(release.values["run"]["config"]), names)
    expected = rendered(release)
    if values["model"]["mode"] == "warmup":
        expected = {key: value for key, value in expected.items() if key not in OF_THE_PODS}
    assert tree == expected


def test_what_the_check_in_the_pod_reads_gives_the_same_keys_as_the_whole_values() -> None:
    for release in RELEASES:
        run = yaml.safe_load(release.values["run"]["config"])
        names = Names(release=release.name, namespace=release.namespace)
        whole = merge(default_values(), release.values)
        picked = laid_over(default_values(), yaml.safe_load(config_of(release)["values.yaml"]))
        ours = ("nameOverride", "fullnameOverride")
        picked |= {key: whole[key] for key in ours}  # names of addresses, which the check has no need of
        both = [cluster_tree(Section(tree, default_values()), run, names) for tree in (picked, whole)]
        assert both[0] == both[1]


def rendered(release: Release) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(config_of(release)["cluster.yaml"])
    return found


def config_of(release: Release) -> dict[str, str]:
    """The ConfigMap that the pods read."""
    maps = [d for d in of_kind(render(release), "ConfigMap") if "cluster.yaml" in (d.get("data") or {})]
    (found,) = maps
    data: dict[str, str] = found["data"]
    return data
