"""Each kind of objective, advantage and correction is declared once; tables without a new kind fail here."""

import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
import yaml
from algorithms import advantage_reference
from algorithms.loss_batches import OBJECTIVES as EXAMPLES
from slipstream.algorithms import spec
from slipstream.algorithms.misplaced import why_misplaced
from slipstream.algorithms.spec import ADVANTAGES, CORRECTIONS, OBJECTIVES, Advantage, Correction, Objective
from slipstream.algorithms.spec.kinds import (
    AdvantageKind,
    CorrectionKind,
    Kind,
    ObjectiveKind,
    every_kind,
    kind_name,
)
from slipstream.cli.algorithms import part_table
from slipstream.functions import load_function

ROOT = Path(__file__).parents[2]
AXES: dict[type[Kind], Any] = {ObjectiveKind: Objective, AdvantageKind: Advantage, CorrectionKind: Correction}
KINDS = [cls for union in AXES.values() for cls in every_kind(union).values()]


def declared(base: type[Kind]) -> set[type[Kind]]:
    modules = [import_module(f"{spec.__name__}.{module.name}") for module in iter_modules(spec.__path__)]
    classes = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    return {cls for cls in classes if issubclass(cls, base) and cls is not base}


@pytest.mark.parametrize("base", AXES, ids=lambda base: base.__name__)
def test_the_union_of_an_axis_lists_every_kind_that_is_declared(base: type[Kind]) -> None:
    assert declared(base) == set(every_kind(AXES[base]).values())


@pytest.mark.parametrize("cls", KINDS, ids=lambda cls: cls.__name__)
def test_a_kind_has_a_function_a_formula_and_a_source(cls: type[Kind]) -> None:
    assert callable(load_function(cls.implementation))
    if kind_name(cls) not in ("custom", "mixed"):  # mixed is not from a paper, as its docstring says
        assert " See " in " ".join(str(cls.__doc__).split())


def test_an_estimator_by_step_has_a_function_unless_a_critic_computes_it() -> None:
    for name, cls in ADVANTAGES.items():
        by_step = cls.implementation_by_step
        assert by_step is None or callable(load_function(by_step))
        examples = [cls()] if name != "reinforce_pp" else [cls(group_mean=False, weighting="token")]
        for example in examples:
            assert (example.undefined_by_step is None) == (by_step is not None or name == "gae")


def test_the_property_tests_have_an_example_of_every_objective() -> None:
    assert {example.kind for example in EXAMPLES} == set(OBJECTIVES)


def test_the_reference_has_every_advantage_of_completions() -> None:
    by_completion = {name for name, cls in ADVANTAGES.items() if not cls.by_token}
    assert by_completion <= set(advantage_reference.BY_KIND)


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_a_band_where_none_belongs_is_explained(kind: str) -> None:
    cls = OBJECTIVES[kind]
    has_band = "clip_low" in {field.name for field in fields(cls)}
    assert has_band == (cls.instead_of_a_band is None)
    assert why_misplaced(kind, "clip_low") == cls.instead_of_a_band


def limits() -> dict[float, list[str]]:
    """Limit of the clip fraction → objectives, from the declarations."""
    objectives_by_limit: dict[float, list[str]] = {}
    for name, cls in OBJECTIVES.items():
        if cls.clip_fraction_limit is not None:
            objectives_by_limit.setdefault(cls.clip_fraction_limit, []).append(name)
    return objectives_by_limit


def test_the_alert_on_clipping_has_the_limits_of_the_objectives() -> None:
    file = ROOT / "charts/slipstream/files/rules/recording.yaml"
    rules = yaml.safe_load(file.read_text(encoding="utf-8"))
    expressions = {rule["record"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}
    expression = expressions["slipstream:clip_fraction_limit"]
    written = re.findall(r'([\d.]+) \* slipstream_objective_info\{objective=~?"([^"]+)"\}', expression)
    assert {float(limit): sorted(names.split("|")) for limit, names in written} == {
        limit: sorted(names) for limit, names in limits().items()
    }


def test_the_page_of_the_alert_on_clipping_says_the_limits_of_the_objectives() -> None:
    page = " ".join((ROOT / "docs/alerts.md").read_text(encoding="utf-8").split())
    for limit, names in limits().items():
        *others, last = names
        assert f"{100 * limit:.0f} % for {', '.join(others)}{' and ' if others else ''}{last}" in page


@pytest.mark.parametrize("axis", ["objective", "advantage", "correction"])
def test_the_documentation_has_the_table_of_an_axis_as_it_is(axis: str) -> None:
    page = (ROOT / "docs/algorithms.md").read_text(encoding="utf-8").splitlines()
    rows = part_table(axis).splitlines()
    missing = [row for row in rows if row not in page]
    assert missing == [], "add these rows to docs/algorithms.md:\n" + "\n".join(missing)
    first = page.index(rows[0])
    assert page[first : first + len(rows)] == rows, "the rows are in another order than the kinds"


def test_the_corrections_that_weigh_are_those_by_rho() -> None:
    assert {name for name, cls in CORRECTIONS.items() if cls.weighs} == {
        *("tis", "mis", "icepop", "geometric_rejection"),
    }
