"""Every example and every pair of switches renders to valid objects that meet the policies."""

from dataclasses import replace
from functools import cache
from itertools import combinations, product

import pytest
import yaml
from chart.combinations import SWITCHES, Row, pairwise, release_of
from chart.external import external_names
from chart.manifests import of_kind, pod_templates
from chart.policies.configuration import CHECKSUM
from chart.policies.selection import releases_are_apart
from chart.policies.table import violations
from chart.release_small import RUN, small_release
from chart.rendering import Document, parse, render
from chart.schemas import KUBERNETES, custom_problems, kubernetes_problems, strict_problems
from render import examples, read_release, render_text

EXAMPLES = {file.stem.removesuffix("-values"): file for file in examples()}
PAIRWISE = pairwise(SWITCHES)
UNCONFIGURED = ("redis",)
"""Components that do not read the configuration of the run."""


@cache
def example(name: str) -> list[Document]:
    """Return the objects of an example."""
    return render(read_release(EXAMPLES[name]))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_meets_every_policy(name: str) -> None:
    release = read_release(EXAMPLES[name])
    assert violations(example(name), external=external_names(release)) == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_valid_in_the_oldest_and_the_newest_kubernetes(name: str) -> None:
    for version in (KUBERNETES[0], KUBERNETES[-1]):
        assert kubernetes_problems(example(name), version) == []
    assert strict_problems(example(name)) == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_mapping_of_an_example_has_a_duplicate_key(name: str) -> None:
    assert len(parse(render_text(read_release(EXAMPLES[name])))) == len(example(name))


def test_a_mapping_with_a_duplicate_key_is_an_error() -> None:
    with pytest.raises(yaml.constructor.ConstructorError, match="the key a is there two times"):
        parse("kind: A\nmetadata: {labels: {a: b, c: d, a: b}}\n")


def test_a_label_of_a_component_overrides_the_label_of_all_objects() -> None:
    special = {"labels": {"team": "room"}, "podLabels": {"team": "pod"}}
    components = ("learner", "actor", "verifier", "teacher", "replay", "redis")
    documents = render(
        small_release(
            commonLabels={"team": "all", "site": "a"},
            rollout={"defaults": special},
            tests={"podLabels": {"team": "pod"}},
            monitoring={"rules": {"from": "chart", "labels": {"team": "room"}}},
            **{component: special for component in components},
        )
    )
    team_labels = {(d["kind"], d["metadata"]["labels"]["team"]) for d in documents}
    assert {pod.labels["team"] for pod in pod_templates(documents)} == {"pod"}
    assert {
        team for kind, team in team_labels if kind in ("Deployment", "StatefulSet", "PrometheusRule")
    } == {"room"}
    assert {team for kind, team in team_labels if kind in ("Service", "ConfigMap", "NetworkPolicy")} == {
        "all"
    }
    assert {d["metadata"]["labels"]["site"] for d in documents} == {"a"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_two_releases_of_an_example_in_one_namespace_are_separate(name: str) -> None:
    other = replace(read_release(EXAMPLES[name]), name="other")
    assert list(releases_are_apart(example(name), render(other))) == []


@pytest.mark.chart
@pytest.mark.parametrize("version", KUBERNETES)
def test_every_example_is_valid_in_every_kubernetes(version: str) -> None:
    assert [problem for name in EXAMPLES for problem in kubernetes_problems(example(name), version)] == []


@pytest.mark.chart
def test_custom_resources_of_all_examples_match_their_schemas() -> None:
    assert custom_problems([document for name in EXAMPLES for document in example(name)]) == []


@pytest.mark.chart
@pytest.mark.parametrize("row", PAIRWISE, ids=lambda row: "-".join(row.values()))
def test_a_combination_of_switches_is_valid_and_meets_every_policy(row: Row) -> None:
    release = release_of(row)
    documents = render(release)
    assert violations(documents, external=external_names(release)) == []
    assert kubernetes_problems(documents, KUBERNETES[-1]) == []
    assert strict_problems(documents) == []


def test_every_pair_of_positions_is_in_some_combination() -> None:
    for one, two in combinations(SWITCHES, 2):
        met = {(row[one], row[two]) for row in PAIRWISE}
        assert met == set(product(SWITCHES[one], SWITCHES[two]))


@pytest.mark.parametrize("position", SWITCHES["teacher"])
def test_helm_test_probes_every_service_of_the_run(position: str) -> None:
    row = {switch: next(iter(positions)) for switch, positions in SWITCHES.items()}
    pods = of_kind(render(release_of({**row, "teacher": position})), "Pod")
    probed = [pod["spec"]["containers"][0]["command"][-1] for pod in pods]
    more = [] if position == "none" else ["teacher"]
    assert probed == ["replay", "verifier", "learner", "circle", *more]


@pytest.mark.parametrize("change", ["run", "cluster"])
def test_every_pod_that_reads_the_configuration_is_replaced_when_it_changes(change: str) -> None:
    changes = {"run": {"run": {"config": RUN + "seed: 7\n"}}, "cluster": {"actor": {"drainSeconds": 77}}}
    before, after = checksums(render(small_release())), checksums(render(small_release(**changes[change])))
    assert before.keys() == after.keys() >= {"learner", "rollout", "actor", "verifier", "replay"}
    assert [name for name in before if before[name] == after[name] and name not in UNCONFIGURED] == []


def checksums(documents: list[Document]) -> dict[str, str]:
    """Return the checksum annotation of the pods of each component."""
    pods = [pod for pod in pod_templates(documents) if pod.runs_on]
    return {pod.component: pod.metadata["annotations"][CHECKSUM] for pod in pods}
