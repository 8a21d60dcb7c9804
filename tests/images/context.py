"""The files that `docker build` sends to the builder: those that .dockerignore does not exclude."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path


def context_files(root: Path) -> Iterator[Path]:
    """Return the files of the build context of `root`, relative to `root`.

    The last pattern of .dockerignore that matches a file decides whether the file is excluded.
    """
    rules = patterns((root / ".dockerignore").read_text(encoding="utf-8"))
    for top in sorted(root.iterdir()):
        if ignored(top.name, rules) and not any(back for back, _ in rules if back):
            continue
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            relative = path.relative_to(root)
            if path.is_file() and not ignored(str(relative), rules):
                yield relative


def patterns(text: str) -> list[tuple[bool, re.Pattern[str]]]:
    """Return the patterns in order, as regular expressions; True marks a pattern with `!`, an exception."""
    lines = [line.strip() for line in text.splitlines()]
    wanted = [line for line in lines if line and not line.startswith("#")]
    return [(line.startswith("!"), expression(line.removeprefix("!"))) for line in wanted]


def expression(pattern: str) -> re.Pattern[str]:
    """Return a regular expression for the files that a pattern matches, and for those of a matching folder.

    `**/` matches any number of folders, and `*` any part of one name.
    """
    pieces = {"**/": "(?:.*/)?", "*": "[^/]*"}
    parts = re.split(r"(\*\*/|\*|\[[^]]*\])", pattern)
    text = "".join(pieces.get(p, p if p.startswith("[") else re.escape(p)) for p in parts)
    return re.compile(f"{text}(?:/.*)?")


def ignored(path: str, rules: Sequence[tuple[bool, re.Pattern[str]]]) -> bool:
    result = False
    for back, rule in rules:
        if rule.fullmatch(path):
            result = not back
    return result
