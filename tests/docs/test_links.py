"""Every link of every page leads to a file of the repository, and to a heading or an anchor of it."""

from pathlib import Path

import pytest
from docs.markdown import LINK, broken_links, without_blocks

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(
        path
        for tree in ("docs", "docker", "deploy", "charts")
        for path in sorted((ROOT / tree).rglob("*.md"))
    ),
)
"""All pages, without that from which charts/generate.py makes another one."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_an_anchor(page: Path) -> None:
    assert broken_links(page) == []


def test_most_links_have_an_anchor_or_lead_to_another_page() -> None:
    links = [
        link for page in PAGES for link in LINK.findall(without_blocks(page.read_text(encoding="utf-8")))
    ]
    assert len(links) > 300
    assert sum("#" in link for link in links) > 50


@pytest.mark.parametrize(
    ("link", "broken"),
    [
        ("other.md", False),
        ("other.md#a-heading", False),
        ("#own-heading", False),
        ("gone.md", True),
        ("other.md#gone", True),
        ("#gone", True),
    ],
)
def test_a_broken_link_is_noticed(link: str, broken: bool, tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A heading\n")
    page = tmp_path / "page.md"
    page.write_text(f"# Own heading\n\n[text]({link})\n")
    assert broken_links(page) == ([link] if broken else [])
