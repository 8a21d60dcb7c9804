"""The program in an answer."""

import re

FENCE = re.compile(r"([ \t]*+)(`{3,}+|~{3,}+)([^`]*+)")
"""A fence of Markdown: its indent, the fence, and the language of the block."""
FUTURE = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n)*(?:from __future__ import [^\n(]*\n)+")
"""Imports from `__future__`, which Python allows only at the beginning of a program."""
LANGUAGES = frozenset({"python", "python3", "py"})


def last_block(text: str) -> str | None:
    """Return the last closed block of Python in a Markdown text, without the indent of its fence; or None.

    As CommonMark defines, the closing fence is at least as long as the opening one, so a shorter fence inside
    a block is text.
    """
    code: str | None = None
    opening: re.Match[str] | None = None
    block: list[str] = []
    for line in text.split("\n"):
        fence = FENCE.fullmatch(line.rstrip())
        if opening is None:
            opening, block = fence, []
        elif fence and not fence[3] and fence[2].startswith(opening[2]):
            code = "\n".join(block) if _is_python(opening[3]) else code
            opening = None
        else:
            block.append(line.removeprefix(opening[1]))
    return code


def behind(setup: str, program: str) -> str:
    """Return the program with `setup` in front of it, but after its imports from `__future__`."""
    if not setup:
        return program
    future = FUTURE.match(program)
    begin = future.end() if future else 0
    return f"{program[:begin]}{setup}\n{program[begin:]}"


def _is_python(language: str) -> bool:
    """Return whether the text after a fence begins with a name of Python."""
    words = language.lower().split(maxsplit=1)
    return bool(words) and words[0] in LANGUAGES
