"""benchmarks/figures.py: every table of figures is declared, within its bounds, and recent enough."""

import importlib
import re
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS_OF_MINUTES = ("samples", "console", "lab", "pause", "stall", "broadcast")
TRAINING = ("clip_fractions", "staleness", "distillation", "smollm2")
EXAMPLES = ("guess_number", "wordle", "calculator_tool", "agent_program")
NAMES = (
    *("quickstart", "async", "actors", "weights", "learner_step", "verifier", "isolation", "replay"),
    *("autoscaling", "objectives", "operations"),
    *BENCHMARKS_OF_MINUTES,
    *TRAINING,
    "math_answers",
    *EXAMPLES,
)
LONG = (*BENCHMARKS_OF_MINUTES, *TRAINING, *EXAMPLES)
QUICK = tuple(name for name in NAMES if name not in LONG)
PAGES = (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))


@pytest.fixture(scope="module")
def part() -> Any:
    """Return a function that imports a module of the benchmarks."""
    return lambda name: importlib.import_module(f"benchmarks.{name}")


@pytest.fixture(scope="module")
def figures(part: Any) -> ModuleType:
    module: ModuleType = part("figures")
    return module


def named(figures: ModuleType, name: str) -> Any:
    return {figure.name: figure for figure in figures.FIGURES}[name]


def page_of(figure: Any) -> str:
    return (ROOT / figure.page).read_text(encoding="utf-8")


@pytest.mark.alone
@pytest.mark.parametrize("name", QUICK)
def test_the_short_form_of_a_figure_reaches_its_bounds(figures: ModuleType, name: str) -> None:
    figures.measured(named(figures, name), quick=True)


OLD = ("smollm2",)
"""Tables that have to be measured again, on a machine without other work."""


def with_old_tables() -> list[Any]:
    """The names of all figures; those of old tables are expected to fail until they are measured again."""
    reason = "the table is too old: run `make figures` for it, and take its name out of OLD"
    expected = pytest.mark.xfail(strict=True, reason=reason)
    return [pytest.param(name, marks=expected) if name in OLD else name for name in NAMES]


@pytest.mark.parametrize("name", with_old_tables())
def test_a_table_is_not_much_older_than_the_code_that_it_measures(figures: ModuleType, name: str) -> None:
    figure = named(figures, name)
    commit = figures.commit_of(page_of(figure), figure)
    try:
        behind = figures.commits_behind(commit, figure.code)
    except figures.NoHistory as error:
        pytest.skip(str(error))
    assert behind <= figures.MOST_COMMITS, f"run `make figures FIGURES={name}`"


@pytest.mark.parametrize("name", NAMES)
def test_a_table_has_the_ratios_of_its_bounds_and_is_within_them(figures: ModuleType, name: str) -> None:
    figure = named(figures, name)
    begin, end = figure.markers
    table = page_of(figure).partition(begin)[2].partition(end)[0]
    for bound in figure.bounds:
        bound.check(figures.ratios_of(table), quick=False)


def test_every_figure_is_tested(figures: ModuleType) -> None:
    assert tuple(figure.name for figure in figures.FIGURES) == NAMES
    assert tuple(figure.name for figure in figures.FIGURES if figure.quick is not None) == QUICK


def test_every_figure_with_a_short_form_has_a_bound_for_it(figures: ModuleType) -> None:
    for figure in figures.FIGURES:
        loose = [b for b in figure.bounds if b.quick_least is not None or b.quick_most is not None]
        assert bool(loose) == (figure.quick is not None), figure.name


def test_the_code_that_a_figure_measures_exists(figures: ModuleType) -> None:
    assert not [path for figure in figures.FIGURES for path in figure.code if not (ROOT / path).exists()]


def test_every_marker_of_a_page_belongs_to_a_figure(figures: ModuleType) -> None:
    places = {
        (name, page) for page in PAGES for name in re.findall(r"<!-- figure: (\w+) -->", page.read_text())
    }
    assert places == {(figure.name, ROOT / figure.page) for figure in figures.FIGURES}


def test_every_benchmark_that_the_pages_name_belongs_to_a_figure(figures: ModuleType) -> None:
    modules = {name for page in PAGES for name in re.findall(r"benchmarks[./](\w+)", page.read_text())}
    assert len(modules) > 10
    assert modules - {"md", "html"} <= {"figures", *(figure.command[0] for figure in figures.FIGURES)}


def figure_of(figures: ModuleType, **changes: Any) -> Any:
    settings = {"name": "one", "command": ("x", "--to", "{commit}"), "quick": (), "measures": ("code",)}
    return figures.Figure(**{**settings, "bounds": (), **changes})


def test_a_new_table_replaces_the_old_one_with_commit_and_machine(figures: ModuleType) -> None:
    page = "before\n<!-- figure: one -->\nold\n<!-- end of figure: one -->\nafter"
    figure = figure_of(figures, fenced=True)
    written = figures.with_table(page, figure, "1 2", commit="abcdef1", where="2 cores")
    assert written == (
        "before\n<!-- figure: one -->\nAt commit `abcdef1`, on 2 cores:\n\n```\n1 2\n```\n"
        "<!-- end of figure: one -->\nafter"
    )
    assert figures.commit_of(written, figure) == "abcdef1"
    again = figures.with_table(written, figure_of(figures), "3", commit="1234567", where="3 cores")
    assert figures.commit_of(again, figure) == "1234567"
    assert "1 2" not in again


@pytest.mark.parametrize("page", ["nothing", "{1}", "{1} {0}", "{0} {1} {1}"])
def test_a_page_without_its_two_markers_is_refused(figures: ModuleType, page: str) -> None:
    figure = figure_of(figures)
    with pytest.raises(ValueError, match=r"docs/benchmarks\.md: needs one"):
        figures.with_table(page.format(*figure.markers), figure, "1", commit="abcdef1", where="2 cores")
    with pytest.raises(ValueError, match=r"docs/benchmarks\.md: needs"):
        figures.commit_of(page.format(*figure.markers), figure)


def test_a_full_run_names_the_commit_and_a_short_run_has_its_own_arguments(figures: ModuleType) -> None:
    figure = figure_of(figures, quick=("--few",))
    module = ("-m", "benchmarks.x")
    assert figure.arguments(quick=False, commit="abcdef1") == [*module, "--to", "abcdef1"]
    assert figure.arguments(quick=True, commit="abcdef1") == [*module, "--few"]


@pytest.mark.parametrize(
    ("value", "quick", "missed"),
    [
        (2.0, False, None),
        (1.9, False, "at least 2"),
        (float("nan"), False, "at least 2"),
        (1.9, True, None),
        (1.4, True, "at least 1.5"),
    ],
)
def test_the_bound_of_the_short_form_is_looser(
    figures: ModuleType, value: float, quick: bool, missed: str | None
) -> None:
    bound = figures.Bound(ratio="a / b", least=2.0, quick_least=1.5)
    if missed is None:
        bound.check({"a / b": value}, quick=quick)
    else:
        with pytest.raises(figures.MissedBound, match=missed):
            bound.check({"a / b": value}, quick=quick)


def test_a_ratio_that_is_not_printed_is_a_missed_bound(figures: ModuleType) -> None:
    bound = figures.Bound(ratio="a / b", most=2.0)
    with pytest.raises(figures.MissedBound, match="a / b: not printed; the ratios are c"):
        bound.check({"c": 1.0}, quick=False)
    bound.check({}, quick=True)


def test_a_printed_ratio_is_read_back(part: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ratio = part("ratio")
    values = {"a: b / c": 2.5, "small": 1.25e-7, "large": 26380.0, "none": 0.0}
    for name, value in values.items():
        ratio.print_ratio(name, value)
    output = f"| a | 1 |\n- holds: at least 2\n{capsys.readouterr().out}text - x: 1\n"
    assert ratio.ratios_of(output) == values


def test_a_missed_bound_leaves_the_page_unchanged(
    figures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "x.py").write_text("print('- a / b: 1.5')\n")
    (tmp_path / "page.md").write_text("<!-- figure: one -->\nold\n<!-- end of figure: one -->\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    commit(tmp_path, "all")
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    bounds = (figures.Bound(ratio="a / b", least=2.0),)
    with pytest.raises(figures.MissedBound, match=r"a / b: 1\.5, must be at least 2"):
        figures.measure_again(figure_of(figures, page="page.md", bounds=bounds))
    assert "old" in (tmp_path / "page.md").read_text()
    figures.measure_again(figure_of(figures, page="page.md"))
    written = (tmp_path / "page.md").read_text()
    assert "- a / b: 1.5" in written
    assert figures.commit_of(written, figure_of(figures)) == git(tmp_path, "rev-parse", "--short=7", "HEAD")
    (tmp_path / "benchmarks" / "x.py").write_text("print('- a / b: 2.5')\n")
    with pytest.raises(ValueError, match="commit first"):
        figures.measure_again(figure_of(figures, page="page.md"))


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(folder: Path, message: str) -> str:
    git(folder, "commit", "-q", "--allow-empty", "-m", message)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def history(tmp_path: Path) -> tuple[Path, list[str]]:
    """Create a repository of five commits; the first and the fourth change `code`."""
    folder = tmp_path / "whole"
    folder.mkdir()
    git(folder, "init", "-q")
    made = []
    for number in range(5):
        if number in (0, 3):
            (folder / "code").write_text(str(number))
            git(folder, "add", "code")
        made.append(commit(folder, str(number)))
    return folder, made


@pytest.mark.parametrize(("place", "behind"), [(0, 1), (1, 1), (2, 1), (3, 0), (4, 0)])
def test_the_age_of_a_table_is_the_number_of_later_changes_of_its_code(
    figures: ModuleType, history: tuple[Path, list[str]], place: int, behind: int
) -> None:
    folder, made = history
    assert figures.commits_behind(made[place][:7], ("code",), folder) == behind


def test_the_age_of_a_table_is_unknown_in_a_shallow_clone_or_an_archive(
    figures: ModuleType, history: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, made = history
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{folder}", "shallow")
    (tmp_path / "archive").mkdir()
    (folder / "unpacked").mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    for place, reason in (
        (tmp_path / "shallow", "a shallow clone"),
        (tmp_path / "archive", "no git repository$"),
        (folder / "unpacked", "no git repository of its own"),
    ):
        with pytest.raises(figures.NoHistory, match=reason):
            figures.commits_behind(made[0], ("code",), place)


def test_a_commit_that_a_complete_history_lacks_is_an_error(
    figures: ModuleType, history: tuple[Path, list[str]]
) -> None:
    with pytest.raises(ValueError, match="not in the history"):
        figures.commits_behind("0123456", ("code",), history[0])
