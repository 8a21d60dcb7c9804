"""docs/networks.md: its values render on top of those of the first release, and its commands exist."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from docs.test_kubernetes_page import RUN, rendered, values_with
from slipstream.cli.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/networks.md").read_text(encoding="utf-8")
BLOCKS = [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```$", PAGE, flags=re.M | re.S)]


def pods(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pod templates of learner and rollout, with `values` on top of those of the first release."""
    first = values_with("registry: registry.example.com")
    merged = {**first, **{component: {**first[component], **values[component]} for component in values}}
    owners = [d for d in rendered(merged, RUN) if d["kind"] in ("StatefulSet", "Deployment")]
    parts = {"learner", "rollout"}
    return [
        d["spec"]["template"]
        for d in owners
        if d["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"] in parts
    ]


@pytest.mark.chart
@pytest.mark.parametrize("values", BLOCKS, ids=range(len(BLOCKS)))
def test_the_settings_of_the_page_are_in_the_pods_of_learner_and_rollout(values: dict[str, Any]) -> None:
    learner, rollout = pods(values)
    for component, pod in ((values["learner"], learner), (values["rollout"]["defaults"], rollout)):
        (container, *_) = pod["spec"]["containers"]
        for name, amount in component.get("resources", {}).get("limits", {}).items():
            assert str(container["resources"]["limits"][name]) == str(amount)
        for setting in component.get("extraEnv", []):
            assert setting in container["env"]
        assert component.get("podAnnotations", {}).items() <= pod["metadata"]["annotations"].items()


@pytest.mark.parametrize("target", ["send-weights", "receive-weights"])
def test_every_option_of_a_probe_on_the_page_exists(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["probe", target, "--help"])
    help_text = capsys.readouterr().out
    (command,) = re.findall(rf"slipstream probe {target}((?:.|\\\n)*?)\n", PAGE.partition("## What NCCL")[0])
    assert all(option in help_text for option in re.findall(r"--[a-z]+", command))


@pytest.mark.chart
def test_the_pod_of_a_pool_of_groups_is_that_of_the_page() -> None:
    first = values_with("registry: registry.example.com")
    pool = {"name": "default", "nodes": 2, "gpu": {"count": 4}}
    documents = rendered({**first, "rollout": {"pools": [pool]}}, f"{RUN}rollout: {{tensor_parallel: 8}}\n")
    (group,) = [d["metadata"]["name"] for d in documents if d["kind"] == "LeaderWorkerSet"]
    assert f"write `pod/{group}-0` in place of\n`deployment/{group}`" in PAGE
    assert not any(d["kind"] == "Deployment" and d["metadata"]["name"] == group for d in documents)


def test_the_page_is_linked_from_the_readme_and_the_page_on_kubernetes() -> None:
    assert "docs/networks.md" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "networks.md" in (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")
