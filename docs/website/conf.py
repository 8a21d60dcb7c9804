"""The settings of Sphinx for the documentation site: `make site` builds it into build/site.

The sources are the Markdown pages of the repository as they are, and the docstrings behind docs/api. The site
needs no network: formulas are MathML, diagrams are drawn by a local copy of mermaid, search is Sphinx's own.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "services")]

from slipstream import __version__  # noqa: E402, the path is set above

project = "Slipstream"
release = __version__
root_doc = "README"
include_patterns = [
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**.md", "docs/api/**.rst"),
    *("docker/README.md", "deploy/**README.md", "charts/README.md", "charts/slipstream/README.md"),
]
exclude_patterns = [".*", "build", "runs", "services", "tests", "docs/website"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
extensions += ["pages", "diagrams", "formulas", "docstrings"]
nitpicky = False

myst_enable_extensions = ["dollarmath"]
myst_dmath_allow_labels = False
myst_dmath_allow_space = False
myst_dmath_allow_digits = False
myst_heading_anchors = 6
myst_fence_as_directive = ["mermaid"]

autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
autodoc_preserve_defaults = True
maximum_signature_line_length = 90
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "Slipstream"
html_static_path = ["static"]
html_extra_path = ["index.html"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_math_renderer = "mathml"
highlight_language = "text"
suppress_warnings = ["config.cache"]
