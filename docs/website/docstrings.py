"""Docstrings as reStructuredText: lines such as `name: text` become a list, symbols stay as they are."""

import re
from collections.abc import Iterator
from typing import Any

from sphinx.application import Sphinx

ARGUMENT = re.compile(r"^((?:\w+(?:, \w+)*)|Errors|Raises): (?=\S)")
SYMBOLS = re.compile(r"([*|\\])|(?<=\w)(_)(?=\W|$)")
CODE = re.compile(r"(`[^`]+`)")


def converted(lines: list[str]) -> list[str]:
    """Return the lines of a docstring in reStructuredText."""
    return [line for paragraph in paragraphs(lines) for line in (*marked(paragraph), "")]


def paragraphs(lines: list[str]) -> Iterator[list[str]]:
    """Yield the paragraphs; a paragraph also ends where an argument or the sentence about errors begins."""
    paragraph: list[str] = []
    for line in lines:
        begins = not line.strip() or ARGUMENT.match(line)
        if begins and paragraph:
            yield paragraph
            paragraph = []
        if line.strip():
            paragraph.append(line)
    if paragraph:
        yield paragraph


def marked(paragraph: list[str]) -> list[str]:
    """Return a paragraph: an argument as an entry of a list, indented lines as code, others as they are."""
    if all(line.startswith("    ") for line in paragraph):
        return ["::", "", *paragraph]
    text = " ".join(line.strip() for line in paragraph)
    argument = ARGUMENT.match(text)
    if argument is None:
        return [escaped(text)]
    return [f"- **{argument[1]}**: {escaped(text[argument.end() :])}"]


def escaped(text: str) -> str:
    """Return a text whose symbols are no markup, with ``code`` between two backticks."""
    parts = CODE.split(text)
    return "".join(f"`{part}`" if CODE.fullmatch(part) else SYMBOLS.sub(r"\\\g<0>", part) for part in parts)


def convert(app: Sphinx, what: str, name: str, thing: object, options: Any, lines: list[str]) -> None:
    """Replace the lines of a docstring."""
    lines[:] = converted(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    """Convert each docstring that autodoc reads."""
    app.connect("autodoc-process-docstring", convert)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
