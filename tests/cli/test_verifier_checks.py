"""Settings with which the verifier would not start are found when the run is validated."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from slipstream.cli.checks.verifier import check_verifier
from slipstream.config import parse_config
from slipstream.config.checks import Problem
from slipstream.sandbox.layers import Report
from slipstream.verifier.check import refusals, unread

JUDGE = {"name": "judge", "url": "https://judge.example/v1", "model": "m"}
NOWHERE = "/nowhere/at/all"


@pytest.mark.parametrize(
    ("reward", "key", "reason", "on_this_machine"),
    [
        ({"name": "reward_model", "path": NOWHERE}, "rewards.0.path", "has no config.json", True),
        ({**JUDGE, "api_key_file": NOWHERE}, "rewards.0.api_key_file", "cannot be read", True),
        ({**JUDGE, "authority": NOWHERE}, "rewards.0.authority", "cannot be read", True),
        ({"name": "json_schema", "json_schema": {"type": "strin"}}, "rewards.0", "not a JSON schema", False),
        ({"name": "json_schema", "json_schema": {"$ref": "http://x"}}, "rewards.0", "leads out of", False),
        (
            {"name": "math", "extract": "pattern", "extract_pattern": "("},
            "rewards.0.extract_pattern",
            "not a usable regular expression",
            False,
        ),
    ],
)
def test_a_reward_that_cannot_be_created_is_refused(
    reward: dict[str, Any], key: str, reason: str, on_this_machine: bool
) -> None:
    (refusal,) = refusals(parse_config({"rewards": [reward]}))
    assert (refusal["key"], refusal["here"]) == (key, on_this_machine)
    assert reason in refusal["reason"]


def test_rewards_that_can_be_created_are_not_refused() -> None:
    rewards = [{"name": "exact_match"}, {"name": "math"}, JUDGE, {"name": "json_schema", "schema_field": "s"}]
    assert list(refusals(parse_config({"rewards": rewards}))) == []


def test_missing_isolation_of_programs_is_reported() -> None:
    async def without_seccomp() -> Report:
        return Report(active=("rlimits", "landlock"), missing={"seccomp": "the kernel has none"})

    (refusal,) = refusals(parse_config({"rewards": [{"name": "code_tests"}]}), without_seccomp)
    assert (refusal["key"], refusal["here"]) == ("verifier.isolation.require", True)
    assert refusal["reason"].startswith("not on this machine: seccomp (the kernel has none)")


def test_too_little_memory_for_programs_is_reported() -> None:
    async def isolated() -> Report:
        return Report(active=("rlimits", "seccomp", "landlock"))

    tree = {"rewards": [{"name": "code_tests", "memory_mib": 65_536}], "verifier": {"workers": 1024}}
    (refusal,) = refusals(parse_config(tree), isolated)
    assert (refusal["key"], refusal["here"]) == ("verifier.workers", True)
    assert refusal["reason"].startswith("1024 programs at a time of 65536 MiB need")


TOOLS = {"kind": "chat_tools", "tools": [{"kind": "python", "memory_mib": 65_536}]}
MIXED = {"kind": "mixture", "of": [{"kind": "addition"}, {"kind": "sort_digits", "environment": TOOLS}]}
"""Only its second source has the tool."""


def test_the_tool_python_needs_isolation_and_memory_for_its_programs() -> None:
    async def without_seccomp() -> Report:
        return Report(active=("rlimits", "landlock"), missing={"seccomp": "the kernel has none"})

    async def isolated() -> Report:
        return Report(active=("rlimits", "seccomp", "landlock"))

    for data in ({"kind": "addition", "environment": TOOLS}, MIXED):
        tree = {"data": data, "verifier": {"workers": 1024}}
        (isolation,) = refusals(parse_config(tree), without_seccomp)
        assert isolation["key"] == "verifier.isolation.require"
        (memory,) = refusals(parse_config(tree), isolated)
        assert memory["reason"].startswith("1024 programs at a time of 65536 MiB need")


def test_validation_checks_the_verifier_also_if_only_the_tool_python_needs_it() -> None:
    requests: list[str] = []

    def ask(request: str) -> dict[str, Any]:
        requests.append(request)
        return {
            "refusals": [{"key": "verifier.workers", "reason": "too many", "here": True}],
            "unread": {},
            "left": 0,
        }

    for number, data in enumerate([{"kind": "addition", "environment": TOOLS}, MIXED], start=1):
        config = parse_config({"data": data})
        (problem,) = check_verifier(config, if_missing="note", ask=ask)
        assert (problem.key, len(requests)) == ("verifier.workers", number)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (subprocess.TimeoutExpired("check", 180.0, stderr=b"a warning"), "it took more than 180 s"),
        (ValueError("no JSON"), "no JSON"),
    ],
)
def test_a_verifier_that_cannot_be_tried_is_a_note(error: Exception, why: str) -> None:
    def ask(request: str) -> dict[str, Any]:
        raise error

    config = parse_config({"data": {"kind": "addition", "environment": TOOLS}})
    (problem,) = check_verifier(config, if_missing="error", ask=ask)
    assert (problem.reason, problem.severity) == (f"could not be tried: {why}", "note")


def test_the_error_of_a_ground_truth_that_the_parser_rejects_names_its_prompt() -> None:
    truths = {"p1": "\\frac{1}{2}", "p2": "x +", "p3": "12"}
    bad, left = unread("math", [(prompt, truth, {}) for prompt, truth in truths.items()])
    assert [prompt for prompt, _ in bad] == ["p2"]
    assert bad[0][1].startswith("has the answer 'x +', which is not read: not an expression: an operand is")
    assert left == 0


def test_the_error_of_invalid_tests_names_their_prompt() -> None:
    tests = {
        "p1": '["assert f(1) == 2"]',
        "p2": "[]",
        "p3": '["assert f(1) < 2"]',
        "p4": "def f(:",
        "p5": "[]",
    }
    bad, left = unread("code_tests", [(prompt, "", {"tests": text}) for prompt, text in tests.items()])
    assert [prompt for prompt, _ in bad] == ["p2", "p3", "p4", "p5"]
    assert bad[0][1] == "has tests that cannot be had: field `tests`: 0 tests; 1 to 1000 are needed"
    assert left == 0


def test_ground_truths_that_are_not_parsed_in_time_are_counted() -> None:
    assert unread("math", [("p1", "x +", {}), ("p2", "12", {})], seconds=-1.0) == ([], 2)


def a_run(folder: Path, *truths: str, rewards: list[dict[str, Any]]) -> dict[str, Any]:
    rows = [{"prompt": f"question {i}?", "answer": truth} for i, truth in enumerate([*truths, *"123456789"])]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    data = {"kind": "file", "path": str(folder / "rows.jsonl"), "held_out_fraction": 0.5}
    return {"rewards": rewards, "data": data}


def test_validation_checks_rewards_and_ground_truths_with_the_verifier(tmp_path: Path) -> None:
    rewards: list[dict[str, Any]] = [
        {"name": "math"},
        {"name": "reward_model", "path": NOWHERE},
        {"name": "code_tests"},
    ]
    config = parse_config(a_run(tmp_path, "x +", "9^{9^9}", rewards=rewards))
    lacking, truth, tests = check_verifier(config, if_missing="note")
    assert (lacking.key, lacking.severity) == ("rewards.1.path", "note")
    assert (truth.key, truth.severity) == ("data", "error")
    assert "prompt rows.jsonl:1 has the answer 'x +'" in truth.reason
    assert "9^" not in truth.reason  # a limit refuses it before the parser runs
    assert "has tests that cannot be had: field `tests`: 0 tests" in tests.reason
    assert "and 8 more; the reward `code_tests` cannot judge them" in tests.reason
    assert [problem.severity for problem in check_verifier(config, if_missing="error")] == ["error"] * 3


def test_simple_rewards_are_checked_without_a_process() -> None:
    def ask(request: str) -> dict[str, Any]:
        raise AssertionError(request)

    rewards = [{"name": "exact_match"}, {"name": "format", "pattern": "a"}]
    problems: list[Problem] = list(
        check_verifier(parse_config({"rewards": rewards}), if_missing="error", ask=ask)
    )
    assert problems == []
