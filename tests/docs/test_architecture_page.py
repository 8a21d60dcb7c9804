"""docs/architecture.md: its invariants, tests, packages and import rules are those of the repository."""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from docs.markdown import broken_links, code, section, table, without_blocks

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "services/slipstream"
PATH = ROOT / "docs/architecture.md"
PAGE = PATH.read_text(encoding="utf-8")
NUMBERS = range(1, 17)
TREES = ("services", "tests", "docs", "charts", "proto", "benchmarks", "deploy", "docker", "examples")
GENERATED = ("v1", "node_modules", "__pycache__")
TEXT = {".py", ".md", ".proto", ".lua", ".yaml", ".yml", ".tpl", ".txt", ".sh", ".toml"}
REFERENCE = re.compile(r"\binvariants?[\s#/*-]+((?:\d+(?:,? and |, |–| to )?)+)", re.IGNORECASE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
OWN_NAMES = ("README.md", "CHANGELOG.md", "pyproject.toml", "Makefile")


def invariants() -> dict[int, str]:
    """The text under each heading of an invariant."""
    under = section(PAGE, "Invariants")
    titles = re.findall(r"^### (Invariant (\d+): .+)$", under, re.MULTILINE)
    return {int(number): section(under, title) for title, number in titles}


def references(text: str) -> list[int]:
    """The numbers of the invariants that a text names."""
    return [int(number) for found in REFERENCE.findall(text) for number in re.findall(r"\d+", found)]


def sources() -> Iterator[Path]:
    """The texts of the repository that may name an invariant."""
    yield from (ROOT / name for name in OWN_NAMES)
    for tree in TREES:
        for path in (ROOT / tree).rglob("*"):
            if path.suffix in TEXT and path.is_file() and not {*path.parts} & {*GENERATED}:
                yield path


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_there_are_sixteen_invariants_in_order_each_with_an_anchor() -> None:
    assert list(invariants()) == [*NUMBERS]
    anchors = re.findall(r'^<a id="invariant-(\d+)"></a>\n### Invariant (\d+): ', PAGE, re.MULTILINE)
    assert anchors == [(str(number), str(number)) for number in NUMBERS]


def test_every_invariant_that_is_named_anywhere_is_on_the_page() -> None:
    named = {path: references(path.read_text(encoding="utf-8")) for path in sources()}
    unknown = {str(path): numbers for path, numbers in named.items() if {*numbers} - {*NUMBERS}}
    assert unknown == {}
    outside = {number for path, numbers in named.items() if path != PATH for number in numbers}
    assert len(outside) > 5, "the code names invariants; this test no longer finds them"


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ("(%s 3)", [3]),
        ("%s\n# 16", [16]),
        ("%ss 3, 5 and 12", [3, 5, 12]),
        ("docs/architecture.md#%s-4", [4]),
        ("an %s of 3 parts", []),
    ],
)
def test_a_reference_is_found_however_it_is_written(words: str, numbers: list[int]) -> None:
    assert references(words % "invariant") == numbers


@pytest.mark.parametrize("number", NUMBERS)
def test_the_tests_of_an_invariant_exist(number: int) -> None:
    named = TEST.findall(invariants()[number])
    assert len(named) >= 2
    assert len(named) == len(set(named)) == invariants()[number].count("\n- ")
    missing = [f"{path}::{name}" for path, name in named if name not in functions(ROOT / path)]
    assert missing == []


def test_where_code_lives_has_every_package_and_no_other() -> None:
    assert listed_packages() == packages()


def listed_packages() -> list[str]:
    listed = []
    for name, _, parts in table(section(PAGE, "Where code lives"), first="in `services/slipstream/`"):
        (package,) = code(name)
        listed += [package, *(package + part for part in code(parts))]
    return sorted(listed)


def packages() -> list[str]:
    """Every package, with a slash behind it, and every module that is in none."""
    inner = [path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("__init__.py")]
    modules = [path.name for path in PACKAGE.glob("*.py") if path.name != "__init__.py"]
    return sorted([*modules, *(f"{path.as_posix()}/" for path in inner if path.parts)])


def test_the_programs_that_the_page_calls_pods_are_the_packages_that_start() -> None:
    introduction = section(PAGE, "Where code lives").partition("\n|")[0]
    pods = {name for name in code(introduction) if (PACKAGE / name).is_dir()}
    programs = {path.parent.name for path in PACKAGE.glob("*/__main__.py")}
    assert pods == programs - {"cli"}


def test_the_layers_are_those_of_the_import_contracts() -> None:
    drawn = re.findall(r'^ +layer\d+\["(.+)"\]$', section(PAGE, "Who may import whom"), re.MULTILINE)
    assert [layer.split(" · ") for layer in drawn] == layers()


def test_the_owners_of_libraries_are_those_of_the_import_contracts() -> None:
    rows = table(section(PAGE, "Who may import whom"), first="library")
    listed = {library: sorted(top_level(code(owners))) for cell, owners in rows for library in code(cell)}
    assert listed == owners_of_libraries()


def owners_of_libraries() -> dict[str, list[str]]:
    """Each library that a contract forbids, and the packages that no contract keeps from it."""
    everybody = {name for layer in layers() for name in layer} - {"v1"}
    kept: dict[str, set[str]] = {}
    for contract in contracts():
        for library in contract.get("forbidden_modules", ()):
            kept.setdefault(library, set()).update(short(contract["source_modules"]))
    return {library: sorted(everybody - packages) for library, packages in kept.items()}


def top_level(packages: list[str]) -> list[str]:
    return [package for package in packages if "/" not in package]


def layers() -> list[list[str]]:
    (found,) = [contract["layers"] for contract in contracts() if contract["type"] == "layers"]
    return [short(layer.split("|")) for layer in found]


def contracts() -> list[Mapping[str, Any]]:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    found: list[Mapping[str, Any]] = tools["importlinter"]["contracts"]
    return found


def short(modules: list[str]) -> list[str]:
    """Names of modules without that of the package."""
    return [module.strip().removeprefix("slipstream.") for module in modules]


def test_every_link_leads_somewhere() -> None:
    assert broken_links(PATH) == []


def test_every_path_that_the_page_names_exists() -> None:
    before, _, after = without_blocks(PAGE).partition("| in `services/slipstream/` |")
    text = before + after.partition("| beside it |")[2]
    paths = [name for name in code(text) if re.fullmatch(r"(\w+/)+[\w.]*", name)]
    assert len(paths) > 10
    assert [name for name in paths if not any((root / name).exists() for root in (ROOT, PACKAGE))] == []
