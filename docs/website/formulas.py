"""Formulas as MathML, which browsers draw without a script: `$a$` in a line, `$$a$$` around a block."""

from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx


def draw_inline(translator: Any, node: nodes.math) -> None:
    """Write a formula inside a sentence."""
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def draw_block(translator: Any, node: nodes.math_block) -> None:
    """Write a formula that stands alone."""
    translator.body.append(f'<div class="formula">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the renderer that conf.py names. Errors of a formula end the build."""
    app.add_html_math_renderer("mathml", (draw_inline, None), (draw_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
