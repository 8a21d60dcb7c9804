"""docs/architecture.md: its invariants, tests, packages and import rules are those of the repository."""

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
    """Return the text below the heading of each invariant."""
    text = section(PAGE, "Invariants")
    titles = re.findall(r"^### (Invariant (\d+): .+)$", text, re.MULTILINE)
    return {int(number): section(text, title) for title, number in titles}


def references(text: str) -> list[int]:
    """Return the numbers of the invariants that a text names."""
    return [int(number) for reference in REFERENCE.findall(text) for number in re.findall(r"\d+", reference)]


def sources() -> Iterator[Path]:
    """Return the files of the repository that may name an invariant."""
    yield from (ROOT / name for name in OWN_NAMES)
    for tree in TREES:
        for path in (ROOT / tree).rglob("*"):
            if path.suffix in TEXT and path.is_file() and not {*path.parts} & {*GENERATED}:
                yield path


def functions(path: Path) -> set[str]:
    return {*re.findall(r"^ *(?:async )?def (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)}


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
def test_every_form_of_a_reference_to_an_invariant_is_found(words: str, numbers: list[int]) -> None:
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
    """Return every package, with a slash after its name, and every module outside of packages."""
    inner = [path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("__init__.py")]
    modules = [path.name for path in PACKAGE.glob("*.py") if path.name != "__init__.py"]
    return sorted([*modules, *(f"{path.as_posix()}/" for path in inner if path.parts)])


def test_the_page_lists_the_packages_with_a_program_as_pods() -> None:
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
    """Return each library that a contract forbids, with the packages that may import it."""
    all_packages = {name for layer in layers() for name in layer} - {"v1"}
    forbidden: dict[str, set[str]] = {}
    for contract in contracts():
        for library in contract.get("forbidden_modules", ()):
            forbidden.setdefault(library, set()).update(without_package(contract["source_modules"]))
    return {library: sorted(all_packages - packages) for library, packages in forbidden.items()}


def top_level(packages: list[str]) -> list[str]:
    return [package for package in packages if "/" not in package]


def layers() -> list[list[str]]:
    (contract_layers,) = [contract["layers"] for contract in contracts() if contract["type"] == "layers"]
    return [without_package(layer.split("|")) for layer in contract_layers]


def contracts() -> list[Mapping[str, Any]]:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    import_contracts: list[Mapping[str, Any]] = tools["importlinter"]["contracts"]
    return import_contracts


def without_package(modules: list[str]) -> list[str]:
    """Return the names of modules without the name of the package."""
    return [module.strip().removeprefix("slipstream.") for module in modules]


def test_every_link_of_the_page_leads_to_a_file_or_an_anchor() -> None:
    assert broken_links(PATH) == []


def test_every_path_that_the_page_names_exists() -> None:
    before, _, after = without_blocks(PAGE).partition("| in `services/slipstream/` |")
    text = before + after.partition("| beside it |")[2]
    paths = [name for name in code(text) if re.fullmatch(r"(\w+/)+[\w.]*", name)]
    assert len(paths) > 10
    assert [name for name in paths if not any((root / name).exists() for root in (ROOT, PACKAGE))] == []
