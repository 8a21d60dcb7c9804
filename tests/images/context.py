"""What .dockerignore lets through to the builder."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path


def context_files(root: Path) -> Iterator[Path]:
    """Every file below `root` that the builder gets, relative to it; the last matching pattern decides."""
    rules = patterns((root / ".dockerignore").read_text(encoding="utf-8"))
    for top in sorted(root.iterdir()):
        if ignored(top.name, rules) and not any(back for back, _ in rules if back):
            continue
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            relative = path.relative_to(root)
            if path.is_file() and not ignored(str(relative), rules):
                yield relative


def patterns(text: str) -> list[tuple[bool, re.Pattern[str]]]:
    """Each line as (lets back in, expression), in order."""
    lines = [line.strip() for line in text.splitlines()]
    wanted = [line for line in lines if line and not line.startswith("#")]
    return [(line.startswith("!"), expression(line.removeprefix("!"))) for line in wanted]


def expression(pattern: str) -> re.Pattern[str]:
    """A pattern names a path or anything above it: `**/` is any folders, `*` stays within one name."""
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
