"""Writes docs/configuration.md, every key of a run's YAML: `make docs`; with --check only compares.

The page is made from the JSON schema that `slipstream schema` prints: a table for each section, and for a
section of several kinds one table a kind. A section that stands in several places is written once, at the
first of them; the others link to it.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from slipstream.config.json_schema import run_schema
from slipstream.config.load import ENVIRONMENT

PAGE: Final = Path(__file__).with_suffix(".md")
TOP: Final = "Top level"
HEAD: Final = "| key | type | default | range | meaning |\n|---|---|---|---|---|"
DEEPEST_HEADING: Final = 5
INTRODUCTION: Final = """\
# Configuration

<!-- `make docs` writes this page; the texts stand under the fields in services/slipstream/config/ -->

A run is one YAML file. A key that is left out has its default; a section without a default has those of its
keys. An unknown key is an error that names the nearest one. `--set learner.steps=5` replaces one key by its
dotted name; `rewards.0.weight` counts the entries of a list from 0. `slipstream validate my.yaml` checks the
file, also across keys, and starts nothing.

An editor with the YAML language server completes the keys and marks errors, by the JSON schema:

```
slipstream schema > slipstream.schema.json
```

```yaml
# yaml-language-server: $schema=slipstream.schema.json
model: {path: organisation/name}
```

The first line names the file of the schema, here in the folder of the YAML. Editors read YAML 1.2, in which
the booleans are `true` and `false`; `yes` and `off` are text there.

The unit of a number stands in its type or its meaning. MiB are 2^20 bytes, GiB 2^30. Paths may begin with
`~`; relative ones start at the working directory.
"""
SET_BY_ENVIRONMENT: Final = """\
## Environment variables

A variable replaces the key of the file and of `--set`. The chart and `deploy/` set them for each pod.

| variable | key |
|---|---|
"""
UNITS: Final[Mapping[str, str]] = {
    "_seconds": "seconds",
    "_mib": "MiB",
    "_gib": "GiB",
    "_tokens": "tokens",
    "_steps": "steps",
}
BOUNDS: Final = (
    ("exclusiveMinimum", "> {}"),
    ("minimum", "≥ {}"),
    ("exclusiveMaximum", "< {}"),
    ("maximum", "≤ {}"),
    ("multipleOf", "multiples of {}"),
)
END_OF_SCALAR: Final = "\n...\n"
"""What YAML writes behind a value that is no section and no list."""
TYPES: Final = {"integer": "whole number", "number": "number", "boolean": "true or false", "null": "null"}
Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One heading of the page: a section of the YAML, or one kind of it, or the list of its kinds."""

    title: str
    depth: int
    schema: Schema
    """Schema of the section, or of the key whose kinds the section lists."""

    @property
    def anchor(self) -> str:
        """The anchor that GitHub gives the heading."""
        return re.sub(r"[^\w\- ]", "", self.title.lower()).replace(" ", "-")


def page(schema: Schema) -> str:
    """The page, from the JSON schema of a run."""
    return _Writer(schema).page()


class _Writer:
    """The sections in the order of the page, and where each definition of the schema is written."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._homes: dict[str, Section] = {}
        self._lists: dict[str, Section] = {}
        """Dotted key → the list of the kinds of its section."""
        top = Section(title=TOP, depth=2, schema=schema)
        self._sections = [top, *self._below(schema, "", 2)]

    def page(self) -> str:
        contents = [f"{'  ' * (s.depth - 2)}- [{s.title}](#{s.anchor})" for s in self._contents()]
        variables = [f"| `{name}` | `{key}` |" for name, key in ENVIRONMENT.items()]
        sections = ["\n".join(self._written(section)) for section in self._sections]
        parts = [INTRODUCTION, "\n".join(contents) + "\n", *sections]
        return "\n".join([*parts, SET_BY_ENVIRONMENT + "\n".join(variables)]) + "\n"

    def _contents(self) -> Iterator[Section]:
        """The headings of the page without kinds, which the table under their own heading lists."""
        return (section for section in self._sections if ":" not in section.title)

    def _below(self, schema: Schema, path: str, depth: int) -> Iterator[Section]:
        """The sections in a section. A definition belongs to the first place that has it."""
        new: list[tuple[str, Schema, list[str]]] = []
        for key, value in schema["properties"].items():
            names = [name for name in _references(value) if name not in self._homes]
            for name in dict.fromkeys(names):
                kind = self._kinds(value).get(name)
                title = f"{path}{key}: {kind}" if kind else f"{path}{key}"
                definition = self._schema["definitions"][name]
                self._homes[name] = Section(title=title, depth=depth + bool(kind), schema=definition)
            if names:
                new.append((f"{path}{key}", value, [*dict.fromkeys(names)]))
        for where, value, names in new:
            if self._kinds(value):
                self._lists[where] = Section(title=where, depth=depth, schema=value)
                yield self._lists[where]
            for home in (self._homes[name] for name in names):
                yield home
                yield from self._below(home.schema, f"{where}.", home.depth + 1)

    def _kinds(self, value: Any) -> dict[str, str]:
        """Name of a definition → its kind, of the kinds that a key has; nothing for other keys."""
        if isinstance(value, list):
            return {name: kind for part in value for name, kind in self._kinds(part).items()}
        if not isinstance(value, Mapping):
            return {}
        sections = {name: self._schema["definitions"][name] for name in _references(value.get("oneOf"))}
        own = {name: section["properties"]["kind"]["const"] for name, section in sections.items()}
        return own | self._kinds(value.get("anyOf")) | self._kinds(value.get("items"))

    def _written(self, section: Section) -> Iterator[str]:
        yield f"{'#' * min(section.depth, DEEPEST_HEADING)} {section.title}\n"
        for paragraph in _paragraphs(section.schema.get("description", "")):
            yield f"{_prose(paragraph)}\n"
        if "properties" in section.schema:
            yield from self._table(section)
        else:
            yield from self._list_of_kinds(section.schema)
        yield ""

    def _list_of_kinds(self, key: Schema) -> Iterator[str]:
        yield "| kind | |\n|---|---|"
        for name, kind in self._kinds(key).items():
            first, *_ = _paragraphs(self._schema["definitions"][name]["description"])
            yield f"| [`{kind}`](#{self._homes[name].anchor}) | {_escaped(_prose(first))} |"

    def _table(self, section: Section) -> Iterator[str]:
        rows = dict(section.schema["properties"])
        if "const" in rows.get("kind", ()):
            del rows["kind"]  # the heading has it
        if not rows:
            yield "It has no other keys."
            return
        yield HEAD
        path = "" if section.title == TOP else f"{section.title.partition(':')[0]}."
        for key, value in rows.items():
            cells = (
                f"`{key}`",
                self._type(value, f"{path}{key}", unit=_unit(key)),
                _default(value, required=key in section.schema.get("required", ())),
                "; ".join(dict.fromkeys(_ranges(value))),
                _prose(value["description"]),
            )
            yield f"| {' | '.join(map(_escaped, cells))} |"

    def _type(self, value: Schema, path: str, *, unit: str = "") -> str:
        if "enum" in value:
            return _choices([str(choice).lower() if choice is False else choice for choice in value["enum"]])
        if "const" in value:
            return _choices([value["const"]])
        if "anyOf" in value:
            return " or ".join(self._type(part, path, unit=unit) for part in value["anyOf"])
        if "oneOf" in value:
            return self._kinds_or_links(value, path)
        if "$ref" in value:
            home = self._homes[_name(value["$ref"])]
            return f"[section](#{home.anchor})"
        if value["type"] == "array":
            return self._list(value, path)
        if value["type"] == "object":
            return "section with free keys"
        if value["type"] == "string":
            return "path" if value.get("format") == "path" else "text"
        types = value["type"] if isinstance(value["type"], list) else [value["type"]]
        units = f", {unit}" if unit and {*types} & {"integer", "number"} else ""
        return " or ".join(TYPES[name] + (units if name != "null" else "") for name in types)

    def _list(self, value: Schema, path: str) -> str:
        entries = value["items"]
        if isinstance(entries, list):
            return f"list of {len(entries)}: {', '.join(self._type(entry, path) for entry in entries)}"
        return f"list, each entry {self._type(entries, path)}"

    def _kinds_or_links(self, value: Schema, path: str) -> str:
        if path in self._lists:
            return f"[one of {len(value['oneOf'])} kinds](#{self._lists[path].anchor})"
        links = [f"[`{kind}`](#{self._homes[name].anchor})" for name, kind in self._kinds(value).items()]
        return f"section: {' or '.join(links)}"


def _references(value: Any) -> Iterator[str]:
    """Names of the definitions that a key refers to itself."""
    if isinstance(value, list):
        for part in value:
            yield from _references(part)
    elif isinstance(value, Mapping):
        if "$ref" in value:
            yield _name(value["$ref"])
        for keyword in ("anyOf", "oneOf", "items"):
            yield from _references(value.get(keyword))


def _name(reference: str) -> str:
    """The definition that a reference names."""
    return reference.removeprefix("#/definitions/")


def _choices(values: list[str]) -> str:
    return (" or " if len(values) == 2 else ", ").join(f"`{value}`" for value in values)


def _unit(key: str) -> str:
    return next((unit for ending, unit in UNITS.items() if f"_{key}".endswith(ending)), "")


def _default(value: Schema, *, required: bool) -> str:
    if required:
        return "*required*"
    if "default" not in value:
        return ""
    default = value["default"]
    if isinstance(default, str) and "\n" in default:
        return f"`{json.dumps(default, ensure_ascii=False)}`"
    text: str = yaml.safe_dump(default, default_flow_style=True, width=sys.maxsize)
    return f"`{text.removesuffix(END_OF_SCALAR).strip()}`"


def _ranges(value: Schema) -> Iterator[str]:
    """The bounds of a key, of its alternatives and of its entries."""
    bounds = [text.format(f"{value[name]:,}") for name, text in BOUNDS if name in value]
    if bounds:
        yield ", ".join(bounds)
    entries = value.get("items")
    if value.get("minLength") or value.get("minItems") == 1:
        yield "not empty"
    elif "minItems" in value and not isinstance(entries, list):
        yield f"at least {value['minItems']} entries"
    if "maxLength" in value:
        yield f"at most {value['maxLength']} characters"
    if "pattern" in value:
        yield f"matches `{value['pattern']}`"
    for part in (*value.get("anyOf", ()), *([entries] if isinstance(entries, Mapping) else entries or ())):
        yield from _ranges(part)


def _paragraphs(text: str) -> list[str]:
    """The paragraphs of a docstring; an invariant is for who reads the code."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    return [paragraph for paragraph in paragraphs if not paragraph.startswith("Invariant")]


def _escaped(cell: str) -> str:
    """Text for a cell of a table, in which a bar ends the cell, also inside of code."""
    return cell.replace("|", r"\|")


def _prose(text: str) -> str:
    """Text for Markdown: outside of code nothing is markup; pages of docs/ become links."""
    parts = re.split(r"(`[^`]*`)", text)
    for position in range(0, len(parts), 2):
        plain = parts[position].replace("<", "&lt;").replace("*", r"\*")
        parts[position] = re.sub(r"\bdocs/([\w-]+\.md)", r"[\g<0>](\1)", plain)
    return "".join(parts)


def main() -> int:
    """Exit status: 1 with --check when the page is out of date."""
    parser = argparse.ArgumentParser(description="Write docs/configuration.md from the schema of a run.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing, and fail if the page would change"
    )
    check: bool = parser.parse_args().check
    text = page(run_schema())
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{'out of date' if check else 'written'}: {PAGE.name}", file=sys.stderr)
    if not check:
        PAGE.write_text(text, encoding="utf-8")
    return 1 if check else 0


if __name__ == "__main__":
    sys.exit(main())
