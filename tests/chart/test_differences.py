"""The difference of two rendered releases has each changed value with its path."""

from copy import deepcopy
from typing import Any

import pytest
from differences import changes, difference
from render import examples, read_release, render_objects

POD = {
    "kind": "Pod",
    "metadata": {"name": "a", "labels": {"team": "x"}},
    "spec": {
        "containers": [{"name": "one", "args": ["-a", "-b"], "env": [{"name": "A", "value": "1"}]}],
        "script": "first\nsecond\nthird\n",
        "rules": [{"port": 1}, {"port": 2}],
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return the pod with a value set at a dotted path, or removed if the value is None."""
    pod: dict[str, Any] = deepcopy(POD)
    *parents, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    place: Any = pod
    for step in parents:
        place = place[step]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return pod


@pytest.mark.parametrize(
    ("path", "value", "lines"),
    [
        ("metadata.labels.team", "y", ['- metadata.labels.team: "x"', '+ metadata.labels.team: "y"']),
        ("metadata.labels.team", None, ["- metadata.labels.team"]),
        ("metadata.labels.more", "y", ['+ metadata.labels.more: "y"']),
        ("metadata.labels.more", {"a": 1}, ["+ metadata.labels.more:", "+     a: 1"]),
        (
            "metadata.labels.team",
            {"a": 1},
            ['- metadata.labels.team: "x"', "+ metadata.labels.team:", "+     a: 1"],
        ),
        (
            "spec.containers.0.args.1",
            "-c",
            ['- spec.containers[one].args[1]: "-b"', '+ spec.containers[one].args[1]: "-c"'],
        ),
        (
            "spec.containers.0.env.0.value",
            "2",
            ['- spec.containers[one].env[A].value: "1"', '+ spec.containers[one].env[A].value: "2"'],
        ),
        ("spec.rules.1.port", 3, ["- spec.rules[1].port: 2", "+ spec.rules[1].port: 3"]),
        ("spec.script", "first\nthird\n", ["- spec.script | second"]),
    ],
)
def test_a_change_is_shown_with_its_path(path: str, value: Any, lines: list[str]) -> None:
    assert difference([POD], [changed(path, value)]).splitlines() == ["Pod/a", *lines]


def test_a_different_order_of_named_elements_is_a_change() -> None:
    one, two = {"name": "one"}, {"name": "two"}
    assert list(changes({"c": [one, two]}, {"c": [two, one]})) == ["+ c: the order is two, one"]


def test_an_object_of_only_one_release_is_removed_or_added() -> None:
    assert difference([POD], []) == "- Pod/a\n"
    assert difference([], [{"kind": "Pod", "metadata": {"name": "a"}}]).splitlines() == [
        "+ Pod/a",
        "+     kind: Pod",
        "+     metadata:",
        "+       name: a",
    ]


def test_a_release_equals_itself_and_every_example_differs_from_the_others() -> None:
    texts = [difference([POD], render_objects(read_release(file))) for file in examples()]
    assert difference([POD], [deepcopy(POD)]) == ""
    assert len(set(texts)) == len(texts)
