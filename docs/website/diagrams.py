"""Fences of the language `mermaid`: diagrams by a local copy of mermaid, or else their text.

`make site` fetches the copy from npm into build/mermaid (fetch-mermaid.sh).
"""

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

COPY = Path(__file__).resolve().parents[2] / "build/mermaid/mermaid.min.js"


class diagram(nodes.literal_block):
    """A diagram; its text is the source."""


class Diagram(SphinxDirective):
    """The directive behind a fence of the language `mermaid`."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the diagram."""
        source = "\n".join(self.content)
        return [diagram(source, source, language="text")]


def draw(translator: Any, node: diagram) -> None:
    """Write the text of a diagram, for mermaid to draw or for people to read."""
    kind = "mermaid" if COPY.exists() else "diagram"
    translator.body.append(f'<pre class="{kind}">{translator.encode(node.astext())}</pre>')
    raise nodes.SkipNode


def add_scripts(
    app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document | None
) -> None:
    """Load mermaid on the pages with a diagram."""
    if tree is not None and tree.next_node(diagram) and COPY.exists():
        app.add_js_file("mermaid.min.js")
        app.add_js_file("diagrams.js")


def add_copy(app: Sphinx) -> None:
    """Add the copy of mermaid to the static files."""
    if COPY.exists():
        app.config.html_static_path.append(str(COPY))


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive and the scripts."""
    app.add_node(diagram, html=(draw, None))
    app.add_directive("mermaid", Diagram)
    app.connect("builder-inited", add_copy)
    app.connect("html-page-context", add_scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
