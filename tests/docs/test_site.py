"""The site of `make site` builds without a warning, needs no network, and all of its links are valid."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 500
LOADED = {"script": "src", "img": "src", "link": "href"}
"""Elements that a browser loads, with the attribute that names the file."""


class Page(HTMLParser):
    """The anchors of a page, its links, and the files that it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect an element."""
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in LOADED and LOADED[tag] in values:
            self.loaded.append(values[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site with the options of the Makefile, in a folder of its own."""
    (options,) = re.findall(r"-m sphinx (.+) \. build/site$", makefile(), re.MULTILINE)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", *options.split(), ".", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def makefile() -> str:
    return (ROOT / "Makefile").read_text(encoding="utf-8")


def test_a_warning_fails_the_build_of_the_makefile() -> None:
    assert "--fail-on-warning --keep-going" in makefile()


def test_every_page_of_docs_is_on_the_site_and_in_the_sidebar(site: Path, pages: dict[Path, Page]) -> None:
    names = [path.relative_to(ROOT).with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")]
    assert len(names) > 30
    assert [name for name in names if site / name not in pages] == []
    sidebar = pages[site / "README.html"].links
    assert [str(name) for name in names if str(name) not in sidebar] == []


def test_no_page_loads_anything_from_the_network(pages: dict[Path, Page]) -> None:
    remote = {
        path.name: file
        for path, page in pages.items()
        for file in page.loaded
        if urlsplit(file).scheme in ("http", "https") or file.startswith("//")
    }
    assert remote == {}


def test_every_file_that_a_page_loads_exists(pages: dict[Path, Page]) -> None:
    missing = [
        f"{path.name}: {file}"
        for path, page in pages.items()
        for file in page.loaded
        if not urlsplit(file).scheme and not (path.parent / unquote(urlsplit(file).path)).exists()
    ]
    assert missing == []


def test_every_link_of_the_site_leads_to_a_page_and_an_anchor(pages: dict[Path, Page]) -> None:
    broken = [
        f"{path.name}: {link}"
        for path, page in pages.items()
        for link in page.links
        if is_broken(link, path, pages)
    ]
    assert broken == []


def is_broken(link: str, path: Path, pages: dict[Path, Page]) -> bool:
    """Return whether an internal link has no target."""
    parts = urlsplit(link)
    if parts.scheme:
        return False
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target not in pages:
        return not target.is_file()
    return bool(parts.fragment) and unquote(parts.fragment) not in pages[target].anchors


def test_the_search_of_the_site_knows_its_pages(site: Path) -> None:
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert all(name in index for name in ("docs/objectives", "docs/api/losses", "Losses and advantages"))


def test_formulas_are_mathml_and_diagrams_are_marked(site: Path) -> None:
    assert "<math" in (site / "docs/objectives/clipping.html").read_text(encoding="utf-8")
    architecture = (site / "docs/architecture.html").read_text(encoding="utf-8")
    assert len(re.findall(r'<pre class="(?:mermaid|diagram)">', architecture)) == 5


def test_the_interface_has_its_public_functions_with_their_arguments(site: Path) -> None:
    losses = (site / "docs/api/losses.html").read_text(encoding="utf-8")
    assert 'id="slipstream.algorithms.policy_loss"' in losses
    assert "<strong>rollout_logprobs, old_logprobs, ref_logprobs</strong>" in losses
    assert "slipstream.actor.environment.Episode.sample" in (site / "docs/api/environments.html").read_text(
        "utf-8"
    )


def test_the_interface_names_every_public_object_of_the_losses() -> None:
    from slipstream import algorithms

    page = (ROOT / "docs/api/losses.rst").read_text(encoding="utf-8")
    named = set(re.findall(r":: ([\w.]+)", page)) | set(re.findall(r"``(\w+)``", page))
    assert {name for name in algorithms.__all__ if name not in named} == set()
