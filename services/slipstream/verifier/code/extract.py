"""The program that an answer holds."""

import re

FENCE = re.compile(r"([ \t]*+)(`{3,}+|~{3,}+)([^`]*+)")
"""Of Markdown: an indent, the fence, and what the block is."""
FUTURE = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n)*(?:from __future__ import [^\n(]*\n)+")
"""What Python has only at the beginning of a program."""
LANGUAGES = frozenset({"python", "python3", "py"})


def last_block(text: str) -> str | None:
    """The last closed block of Python of a text in Markdown, without the indent of its fence, or None.

    As CommonMark says, a fence is closed by one that is as long: what stands in a longer one is a text.
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
    """A program behind what stands before it."""
    if not setup:
        return program
    future = FUTURE.match(program)
    begin = future.end() if future else 0
    return f"{program[:begin]}{setup}\n{program[begin:]}"


def _is_python(language: str) -> bool:
    """Whether what stands behind a fence begins with the name of the language."""
    words = language.lower().split(maxsplit=1)
    return bool(words) and words[0] in LANGUAGES
