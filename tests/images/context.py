"""The files of the build context, by .dockerignore."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path


def context_files(root: Path) -> Iterator[Path]:
    """Return the files of the context below `root`, as relative paths; the last matching pattern decides."""
    rules = patterns((root / ".dockerignore").read_text(encoding="utf-8"))
    for top in sorted(root.iterdir()):
        if ignored(top.name, rules) and not any(back for back, _ in rules if back):
            continue
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            relative = path.relative_to(root)
            if path.is_file() and not ignored(str(relative), rules):
                yield relative


def patterns(text: str) -> list[tuple[bool, re.Pattern[str]]]:
    """Return each pattern in order, as (whether it is an exception `!`, regular expression)."""
    lines = [line.strip() for line in text.splitlines()]
    wanted = [line for line in lines if line and not line.startswith("#")]
    return [(line.startswith("!"), expression(line.removeprefix("!"))) for line in wanted]


def expression(pattern: str) -> re.Pattern[str]:
    """Translate a pattern of a path or of a folder above it: `**/` is any folders, `*` is within one name."""
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
