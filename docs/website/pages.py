"""Fits the Markdown pages, which are written for a code host, to the site: anchors, links, the sidebar."""

import re
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
INDEX = ROOT / "docs/README.md"
ANCHOR = re.compile(r'^<a id="([^"]+)"></a>$', re.MULTILINE)
LINK = re.compile(r"\[([^\]\n]+)\]\(([^)#:\s]+)\)")
PARTS = re.compile(r"^(To [^\n]+):\n\n((?:- .+\n|  .+\n)+)", re.MULTILINE)
PAGE = re.compile(r"^- \[[^\]]+\]\(([^)]+)\.md\)", re.MULTILINE)
FURTHER = (
    (
        "The Python interface",
        ("docs/api/losses", "docs/api/environments", "docs/api/rewards", "docs/api/records"),
    ),
    (
        "The repository",
        (
            *("CONTRIBUTING", "CHANGELOG", "docs/README", "docker/README", "charts/README"),
            *(
                "charts/slipstream/README",
                "deploy/README",
                "deploy/compose/README",
                "deploy/prometheus/README",
            ),
            "deploy/redis/README",
        ),
    ),
)
"""Parts of the sidebar that docs/README.md does not list."""


def contents() -> list[tuple[str, list[str]]]:
    """Return the parts of the sidebar with their pages: those of docs/README.md, and further ones."""
    parts = PARTS.findall(INDEX.read_text(encoding="utf-8"))
    listed = [(title, [f"docs/{page}" for page in PAGE.findall(entries)]) for title, entries in parts]
    return [*listed, *((title, list(pages)) for title, pages in FURTHER)]


def toctree(title: str, pages: list[str]) -> str:
    """Return the directive for a part of the sidebar, which the page itself does not show."""
    return "\n".join(["```{toctree}", ":hidden:", f":caption: {title}", "", *(f"/{p}" for p in pages), "```"])


def without_folder(folder: Path, link: re.Match[str]) -> str:
    """Return a link to a folder as a link to its README, or as its text; other links as they are."""
    target = folder / link[2]
    if not target.is_dir():
        return link[0]
    name = f"{link[2].rstrip('/')}/README.md"
    return f"[{link[1]}]({name})" if (folder / name).exists() else link[1]


def fit(app: Sphinx, name: str, source: list[str]) -> None:
    """Turn HTML anchors into targets, replace links to folders, and add the sidebar to the first page."""
    folder = app.env.doc2path(name).parent
    text = ANCHOR.sub(r"(\1)=", source[0])
    source[0] = LINK.sub(lambda link: without_folder(folder, link), text)
    if name == app.config.root_doc:
        source[0] += "\n\n" + "\n\n".join(toctree(*part) for part in contents()) + "\n"


def setup(app: Sphinx) -> dict[str, bool]:
    """Fit each page when it is read."""
    app.connect("source-read", fit)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
