"""Reads a page as GitHub shows it: its sections, tables, links, and the anchors that a link may name."""

import re
from pathlib import Path

HEADING = re.compile(r"^(#{1,6}) (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def without_blocks(page: str) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)


def section(page: str, title: str) -> str:
    """What stands under one heading, up to the next heading of the same level. Errors: ValueError."""
    for heading in HEADING.finditer(page):
        if heading[2] == title:
            rest = page[heading.end() :]
            following = re.search(rf"^#{{1,{len(heading[1])}}} ", rest, re.MULTILINE)
            return rest[: following.start()] if following else rest
    raise ValueError(f"no section {title!r}")


def table(text: str, *, first: str) -> list[list[str]]:
    """The cells of the rows of the table whose first column has this heading."""
    (lines,) = re.findall(rf"^\| {re.escape(first)} \|.*\n\|[-|]+\|\n((?:\|.*\n?)+)", text, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in lines.strip().splitlines()]


def code(text: str) -> list[str]:
    """What stands between backticks, in order."""
    return re.findall(r"`([^`\n]+)`", text)


def anchors(page: str) -> set[str]:
    """The fragments that a link to the page may have: those of its headings, and explicit ids."""
    own = set(re.findall(r'<a id="([^"]+)">', page))
    return own | {slug(title) for _, title in HEADING.findall(without_blocks(page))}


def slug(title: str) -> str:
    """The anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def broken_links(path: Path) -> list[str]:
    """The links of a page that lead to no file of the repository, or to no anchor of a page."""
    return [link for link in LINK.findall(without_blocks(path.read_text("utf-8"))) if not leads(path, link)]


def leads(path: Path, link: str) -> bool:
    if link.startswith(("https://", "http://")):
        return True
    name, _, fragment = link.partition("#")
    target = (path.parent / name) if name else path
    if not target.exists():
        return False
    return not fragment or fragment in anchors(target.read_text("utf-8"))
