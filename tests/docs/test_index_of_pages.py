"""docs/README.md: the index has one line for every page, and its links are valid."""

import re
from pathlib import Path

from docs.markdown import LINK, broken_links

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
INDEX = DOCS / "README.md"
ENTRY = re.compile(r"^- \[(.+?)\]\((.+?)\): \S.*$", re.MULTILINE)


def test_the_index_has_every_page_of_docs_once() -> None:
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - {"README.md"}
    entries = ENTRY.findall(INDEX.read_text(encoding="utf-8"))
    assert sorted(link for _, link in entries) == sorted(pages)
    assert [title for title, link in entries if title != link] == []


def test_every_line_of_a_list_is_an_entry() -> None:
    lines = re.findall(r"^- .*$", INDEX.read_text(encoding="utf-8"), re.MULTILINE)
    assert [line for line in lines if not ENTRY.fullmatch(line)] == []


def test_every_link_of_the_index_is_valid() -> None:
    assert broken_links(INDEX) == []


def test_the_readme_links_to_the_index_and_to_the_architecture() -> None:
    links = LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert {"docs/README.md", "docs/architecture.md"} <= {*links}
