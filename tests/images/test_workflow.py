"""The workflow of the public CI runs targets of the Makefile, with read-only permissions."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / ".github/workflows/ci.yaml").read_text(encoding="utf-8")
WORKFLOW: dict[Any, Any] = yaml.safe_load(TEXT)
STEPS = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]
TARGETS = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_there_is_a_job_for_lint_tests_browser_chart_and_images():
    commands = {
        name: [s["run"] for s in job["steps"] if "run" in s] for name, job in WORKFLOW["jobs"].items()
    }
    assert commands == {
        "lint": ["make lint"],
        "test": ["make test"],
        "browser": ["make test-browser"],
        "chart": ["make test-chart"],
        "images": ['make images IMAGES="services cpu"'],
    }


def test_every_command_is_a_target_of_the_makefile():
    for step in STEPS:
        if "run" in step:
            command, target, *_ = step["run"].split()
            assert command == "make"
            assert target in TARGETS


@pytest.mark.parametrize("uses", [step["uses"] for step in STEPS if "uses" in step])
def test_every_action_is_pinned_to_a_major_version(uses):
    assert re.fullmatch(r"(actions|docker)/[a-z-]+@v\d+", uses)


def test_the_workflow_may_only_read_the_repository():
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert not any("permissions" in job for job in WORKFLOW["jobs"].values())
    assert "secrets" not in TEXT.replace("no secrets", "")
    assert "pull_request_target" not in TEXT
    assert all(
        step["with"]["persist-credentials"] is False for step in STEPS if "checkout" in step.get("uses", "")
    )


def test_every_job_has_a_time_limit():
    assert all(0 < job["timeout-minutes"] <= 120 for job in WORKFLOW["jobs"].values())
