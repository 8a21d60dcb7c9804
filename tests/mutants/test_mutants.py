"""The tests of the maths detect every mutant of the tables."""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from mutants.advantage_mutants import ADVANTAGE_MUTANTS
from mutants.learner_mutants import LEARNER_MUTANTS
from mutants.loss_mutants import LOSS_MUTANTS
from mutants.mutant import (
    ALGORITHMS,
    LEARNER,
    ROOT,
    Mutant,
    Outcome,
    Part,
    copy_sources,
    outcome_of,
    run_tests,
)
from mutants.objective_mutants import OBJECTIVE_MUTANTS
from slipstream.algorithms.spec import OBJECTIVES

MUTANTS = (*OBJECTIVE_MUTANTS, *LOSS_MUTANTS, *ADVANTAGE_MUTANTS, *LEARNER_MUTANTS)

WITHOUT_MUTANTS = {"gspo_token": "its function is that of gspo, and so are the mutants"}
"""The reason for which an objective has no mutant named after it."""

Runs = dict[str, Future[tuple[Outcome, str]]]


@pytest.fixture(scope="session")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Run all selected mutants, as many at a time as there are processors."""
    calls = [item.callspec for item in request.session.items if hasattr(item, "callspec")]
    chosen = [call.params["mutant"] for call in calls if "mutant" in call.params]
    folder = tmp_path_factory.mktemp("mutants")
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        yield {
            mutant.name: pool.submit(outcome_of, mutant, folder / str(number))
            for number, mutant in enumerate(chosen)
        }
        pool.shutdown(cancel_futures=True)


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_tests_detect_a_mutant(mutant: Mutant, runs: Runs) -> None:
    outcome, log = runs[mutant.name].result()
    assert outcome is Outcome.CAUGHT, f"{mutant.name}: {outcome.value}\n{mutant.path}: {mutant.new}\n{log}"


@pytest.mark.mutants
@pytest.mark.parametrize("part", [ALGORITHMS, LEARNER], ids=["algorithms", "learner"])
def test_without_a_mutant_the_tests_pass(part: Part, tmp_path: Path) -> None:
    copy_sources(tmp_path, part)
    tests = tuple(dict.fromkeys(name for mutant in MUTANTS if mutant.part == part for name in mutant.tests))
    outcome, log = run_tests(tmp_path, part, tests)
    assert outcome is Outcome.SURVIVED, log


def test_every_mutant_fits_the_sources_and_has_its_own_name() -> None:
    for mutant in MUTANTS:
        changed = mutant.apply((ROOT / mutant.path).read_text())
        compile(changed, mutant.file, "exec")
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 40


def test_every_objective_has_a_mutant_that_is_named_after_it_or_a_reason() -> None:
    named = {mutant.name.partition(":")[0] for mutant in OBJECTIVE_MUTANTS}
    missing = set(OBJECTIVES) - named
    assert missing == set(WITHOUT_MUTANTS), "add a mutant to objective_mutants.py for each of these"


def test_an_objective_without_mutants_shares_its_function_with_one_that_has_some() -> None:
    functions = {OBJECTIVES[kind].implementation for kind in OBJECTIVES if kind not in WITHOUT_MUTANTS}
    assert {OBJECTIVES[kind].implementation for kind in WITHOUT_MUTANTS} <= functions


def test_a_mutant_whose_text_is_missing_is_an_error() -> None:
    mutant = Mutant(name="gone", file="loss.py", old="no such text", new="", tests=())
    with pytest.raises(ValueError, match="'no such text' 0 times, needs 1"):
        mutant.apply("something else")
