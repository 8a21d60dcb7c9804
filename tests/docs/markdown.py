"""Parse the Markdown of a page: its sections, tables and links, and its anchors as GitHub makes them."""

import re
from pathlib import Path

HEADING = re.compile(r"^(#{1,6}) (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def without_blocks(page: str) -> str:
    """Return the page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)


def section(page: str, title: str) -> str:
    """Return the text below a heading, up to the next heading of its level or above. Errors: ValueError."""
    for heading in HEADING.finditer(page):
        if heading[2] == title:
            rest = page[heading.end() :]
            following = re.search(rf"^#{{1,{len(heading[1])}}} ", rest, re.MULTILINE)
            return rest[: following.start()] if following else rest
    raise ValueError(f"no section {title!r}")


def table(text: str, *, first: str) -> list[list[str]]:
    """Return the cells of each row of the table whose first column has the heading `first`."""
    (lines,) = re.findall(rf"^\| {re.escape(first)} \|.*\n\|[-| ]+\|\n((?:\|.*\n?)+)", text, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in lines.strip().splitlines()]


def code(text: str) -> list[str]:
    """Return the texts between backticks, in order."""
    return re.findall(r"`([^`\n]+)`", text)


def anchors(page: str) -> set[str]:
    """Return the fragments that a link to the page may have: those of headings, and explicit ids."""
    explicit = set(re.findall(r'<a id="([^"]+)">', page))
    return explicit | {slug(title) for _, title in HEADING.findall(without_blocks(page))}


def slug(title: str) -> str:
    """Return the anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def broken_links(path: Path) -> list[str]:
    """Return the links of a page to a missing file of the repository or to a missing anchor."""
    text = re.sub(r"`[^`\n]+`", "", without_blocks(path.read_text("utf-8")))
    return [link for link in LINK.findall(text) if not is_valid_link(path, link)]


def is_valid_link(path: Path, link: str) -> bool:
    if link.startswith(("https://", "http://")):
        return True
    name, _, fragment = link.partition("#")
    target = (path.parent / name) if name else path
    if not target.exists():
        return False
    return not fragment or fragment in anchors(target.read_text("utf-8"))
