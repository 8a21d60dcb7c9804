"""`slipstream validate --values` sets the keys of a run that the chart sets."""

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
"""Keys that only pods get: with model.mode warmup, the path of the created model."""


@pytest.mark.parametrize("release", RELEASES, ids=range(len(RELEASES)))
def test_the_keys_that_validation_sets_are_those_of_the_configmap(release: Release) -> None:
    values = Section(merge(default_values(), release.values), default_values())
    names = Names(release=release.name, namespace=release.namespace)
    tree = cluster_tree(values, yaml.safe_load(release.values["run"]["config"]), names)
    expected = rendered(release)
    if values["model"]["mode"] == "warmup":
        expected = {key: value for key, value in expected.items() if key not in OF_THE_PODS}
    assert tree == expected


def test_the_values_of_the_check_in_the_pod_give_the_same_keys_as_all_values() -> None:
    for release in RELEASES:
        run = yaml.safe_load(release.values["run"]["config"])
        names = Names(release=release.name, namespace=release.namespace)
        all_values = merge(default_values(), release.values)
        picked = laid_over(default_values(), yaml.safe_load(config_of(release)["values.yaml"]))
        ours = ("nameOverride", "fullnameOverride")
        picked |= {key: all_values[key] for key in ours}  # the check needs no addresses
        both = [cluster_tree(Section(tree, default_values()), run, names) for tree in (picked, all_values)]
        assert both[0] == both[1]


def rendered(release: Release) -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load(config_of(release)["cluster.yaml"])
    return tree


def config_of(release: Release) -> dict[str, str]:
    """Return the data of the ConfigMap that the pods read."""
    maps = [d for d in of_kind(render(release), "ConfigMap") if "cluster.yaml" in (d.get("data") or {})]
    (config_map,) = maps
    data: dict[str, str] = config_map["data"]
    return data
