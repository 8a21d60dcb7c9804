"""Every kind of reward is in the one table of kinds, with facts that hold."""

import inspect
import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest
from slipstream.config import rewards
from slipstream.config.rewards import KINDS, GroundTruth, RewardSection
from slipstream.functions import load_function
from slipstream.prompts.reward_needs import NEEDS

ROOT = Path(__file__).parents[2]
KINDS_IN_CHART = re.compile(r'"slipstream\.verifier\.rewards" \(list \.((?: "\w+")+)\)')


def subclasses(section: type[RewardSection]) -> Iterator[type[RewardSection]]:
    for each in section.__subclasses__():
        yield each
        yield from subclasses(each)


def kinds_in(place: str) -> set[str]:
    return {kind for kind, section in KINDS.items() if section.facts.runs_in == place}


def test_every_class_with_a_kind_is_in_the_table_under_that_kind() -> None:
    for module in pkgutil.iter_modules(rewards.__path__):
        import_module(f"{rewards.__name__}.{module.name}")
    declared = {
        section.model_fields["kind"].default: section
        for section in subclasses(RewardSection)
        if section.__module__.startswith(rewards.__name__) and not section.model_fields["kind"].is_required()
    }
    assert declared == dict(KINDS)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_kind_states_its_own_facts(kind: str) -> None:
    assert "facts" in vars(KINDS[kind]), "a kind does not inherit the facts of another"
    facts = KINDS[kind].facts
    assert facts.by_policy == (facts.runs_in == "rollout")
    if isinstance(facts.sees_group, str):
        assert KINDS[kind].model_fields[facts.sees_group].annotation is bool


@pytest.mark.parametrize("kind", sorted(kind for kind in KINDS if KINDS[kind].facts.by_verifier))
def test_the_verifier_has_the_scorer_of_a_kind(kind: str) -> None:
    name = KINDS[kind].facts.scorer
    assert name is not None
    config, _ = inspect.signature(load_function(name), eval_str=True).parameters.values()
    assert issubclass(KINDS[kind], config.annotation), f"{name} takes another configuration"


def test_each_ground_truth_has_a_reader() -> None:
    assert set(NEEDS) == set(get_args(GroundTruth))


def test_the_chart_lists_the_kinds_that_need_something_of_a_pod() -> None:
    templates = (ROOT / "charts/slipstream/templates").rglob("*.tpl")
    listed = {
        frozenset(re.findall(r'"(\w+)"', kinds))
        for template in templates
        for kinds in KINDS_IN_CHART.findall(template.read_text(encoding="utf-8"))
    }
    assert kinds_in("model_process") in listed
    by_place = {frozenset(kinds_in(place)) for place in ("model_process", "endpoint", "sandbox")}
    assert listed <= by_place | {frozenset({"custom"})}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_page_of_rewards_gives_the_range_of_the_scores(kind: str) -> None:
    page = (ROOT / "docs/rewards.md").read_text(encoding="utf-8")
    scores = KINDS[kind].facts.scores
    start = {"binary": "0, 1", "share": "0 to 1", "penalty": "-1 to 0", "any": "any"}[scores]
    expected = (
        f"docs/rewards.md needs one row `| `{kind}` | what it scores | {start} | its arguments | source and "
        f"limits |` in the table of kinds, at any place; the range of a reward of `{scores}` scores begins "
        f"with `{start}`"
    )
    rows = [line for line in page.splitlines() if line.startswith(f"| `{kind}` |")]
    assert len(rows) == 1, expected
    assert rows[0].split(" | ")[2].startswith(start), expected
