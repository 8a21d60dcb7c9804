"""docs/configuration.md: it is the output of `make docs`, has every key once, and its links are valid."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
import yaml
from configuration import PAGE, page
from jsonschema import Draft7Validator
from slipstream.config.json_schema import run_schema
from slipstream.config.schema import RunConfig
from slipstream.config.schema_keys import fields_of, kind_of, paths

ROOT = Path(__file__).resolve().parents[2]
TEXT = PAGE.read_text(encoding="utf-8")
SMALL = {
    "description": "A run | of one.\n\nInvariant: for those who read the code.",
    "type": "object",
    "properties": {
        "size_mib": {
            "anyOf": [{"type": "integer", "minimum": 1, "maximum": 2048}, {"type": "null"}],
            "default": None,
            "description": "Size <b> a*b, see docs/models.md.",
        },
        "options": {"type": "object", "additionalProperties": True, "description": "Of `a|b`."},
        "words": {
            "type": "array",
            "items": {"type": "string", "minLength": 1},
            "default": ["yes"],
            "description": "Words.",
        },
        "part": {"$ref": "#/definitions/Part", "description": "One part."},
        "same": {"$ref": "#/definitions/Part", "description": "The same once more."},
        "tools": {
            "type": "array",
            "items": {"oneOf": [{"$ref": "#/definitions/Saw"}]},
            "description": "What there is.",
        },
    },
    "required": ["words"],
    "definitions": {
        "Part": {
            "description": "A part.",
            "properties": {"deep": {"type": "boolean", "default": True, "description": "Whether deep."}},
        },
        "Saw": {"description": "It saws.", "properties": {"kind": {"const": "saw"}}},
    },
}


def slug(title: str) -> str:
    """Return the anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def headings(text: str) -> list[str]:
    return re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE)


def test_the_page_equals_the_output_of_make_docs() -> None:
    assert page(run_schema()) == TEXT, "run `make docs`"


def test_the_check_fails_if_the_page_differs(tmp_path: Path) -> None:
    script = tmp_path / "configuration.py"
    script.write_text((ROOT / "docs/configuration.py").read_text(encoding="utf-8"))
    command = [sys.executable, str(script)]
    check = subprocess.run([*command, "--check"], capture_output=True, text=True)
    assert (check.returncode, check.stderr) == (1, "out of date: configuration.md\n")
    assert not (tmp_path / "configuration.md").exists()
    assert subprocess.run(command, capture_output=True).returncode == 0
    assert (tmp_path / "configuration.md").read_text(encoding="utf-8") == TEXT
    assert subprocess.run([*command, "--check"], capture_output=True).returncode == 0


def test_every_heading_has_a_unique_anchor_and_every_link_is_valid() -> None:
    anchors = Counter(map(slug, headings(TEXT)))
    assert {anchor for anchor, count in anchors.items() if count > 1} == set()
    inside = re.findall(r"\]\(#([\w-]+)\)", TEXT)
    assert len(inside) > 150
    assert set(inside) <= set(anchors)
    pages = re.findall(r"\]\(([\w-]+\.md)\)", TEXT)
    assert {"algorithms.md", "security.md"} <= set(pages)
    assert [file for file in pages if not (ROOT / "docs" / file).exists()] == []


def test_every_key_of_the_schema_has_a_row() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", TEXT, flags=re.MULTILINE))
    assert set(paths()) - rows == {"kind"} - rows


def test_every_row_has_a_type_and_a_meaning() -> None:
    rows = [line for line in TEXT.splitlines() if re.match(r"\| `\w+` \| .* \| .* \| .* \| .* \|$", line)]
    assert len(rows) > 300
    for row in rows:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)]
        _, _, kind, *_, meaning, _ = cells
        assert len(cells) == 7, row
        assert kind, row
        assert len(meaning.split()) >= 2, row


def test_the_rows_of_a_small_schema_are_as_expected() -> None:
    lines = page(SMALL).splitlines()
    meaning = r"Size &lt;b> a\*b, see [docs/models.md](models.md)."
    assert f"| `size_mib` | whole number, MiB or null | `null` | ≥ 1, ≤ 2,048 | {meaning} |" in lines
    assert r"| `options` | section with free keys |  |  | Of `a\|b`. |" in lines
    assert "| `words` | list, each entry text | *required* | not empty | Words. |" in lines
    assert "| `part` | [section](#part) |  |  | One part. |" in lines
    assert "| `same` | [section](#part) |  |  | The same once more. |" in lines
    assert "| `deep` | true or false | `true` |  | Whether deep. |" in lines
    assert "| `tools` | list, each entry [one of 1 kinds](#tools) |  |  | What there is. |" in lines
    assert headings(page(SMALL))[1:5] == ["Top level", "part", "tools", "tools: saw"]
    assert "A run | of one." in lines
    assert not any("Invariant" in line for line in lines)


def test_a_default_that_yaml_would_parse_differently_is_quoted() -> None:
    defaults = re.findall(r"^\| `answers` \| [^|]* \| `([^`]*)`", TEXT, flags=re.MULTILINE)
    assert [yaml.safe_load(default) for default in defaults] == [["yes", "no"]]


def test_the_example_of_the_page_names_the_schema_and_is_valid() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.DOTALL)
    first, _ = example.split("\n", 1)
    (file,) = re.findall(r"> (\S+\.json)$", TEXT, flags=re.MULTILINE)
    assert first == f"# yaml-language-server: $schema={file}"
    Draft7Validator(run_schema()).validate(yaml.safe_load(example))


@pytest.mark.parametrize("section", ["rewards", "data", "stages"])
def test_every_kind_is_listed_under_its_section(section: str) -> None:
    listed = TEXT.partition(f"\n## {section}\n")[2].partition("\n### ")[0]
    kinds = re.findall(rf"\[`(\w+)`\]\(#{section}-\w+\)", listed)
    sections = _classes(fields_of(RunConfig)[section])
    assert sorted(kinds) == sorted(filter(None, map(kind_of, sections)))


def _classes(annotation: object) -> list[type]:
    if isinstance(annotation, type) and hasattr(annotation, "model_fields"):
        return [annotation]
    return [kind for part in get_args(annotation) for kind in _classes(part)]
