"""The metrics page names the algorithm in the words of the configuration."""

from typing import Any

import pytest
from prometheus_client import generate_latest
from slipstream.config import RunConfig
from slipstream.learner.run_info import show_run
from slipstream.telemetry.metrics import Metrics


@pytest.mark.parametrize(
    ("algorithm", "shown"),
    [
        ({"preset": "grpo"}, 'preset="grpo",advantage="grpo",objective="ppo_clip",correction="none"'),
        (
            {"preset": "grpo", "advantage": {"kind": "gae"}, "correction": {"kind": "tis"}},
            'preset="grpo",advantage="gae",objective="ppo_clip",correction="tis"',
        ),
    ],
)
def test_the_run_is_shown_with_what_it_resolved_to(algorithm: dict[str, Any], shown: str) -> None:
    metrics = Metrics()
    show_run(metrics, RunConfig.model_validate({"name": "demo", "algorithm": algorithm}))
    text = generate_latest(metrics.registry).decode()
    (line,) = [line for line in text.splitlines() if line.startswith("slipstream_run_info{")]
    labels = dict(part.split("=") for part in line[line.index("{") + 1 : line.index("}")].split(","))
    assert labels == {"run": '"demo"'} | dict(part.split("=") for part in shown.split(","))
    assert line.endswith("} 1.0")
