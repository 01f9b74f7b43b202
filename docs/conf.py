"""How Sphinx makes the site of these pages: `make docs`."""

import os
import re

project = "tangentlens"
copyright = "the tangentlens developers, Apache-2.0"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
# `index.md` includes it: it is the first page of the folder for those who read these pages as they are.
exclude_patterns = ["README.md"]

# Headings have the anchors by which the pages link to each other.
myst_heading_anchors = 4
# Tutorials are run when the site is built, so that what they show is what this version does; `off` leaves them unrun.
nb_execution_mode = os.environ.get("TANGENTLENS_TUTORIALS", "force")
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# Types that are imported for a type checker alone are written as they are named.
autodoc_type_aliases = {"Wanted": "Wanted", "Schedule": "Schedule", "Fit": "Fit"}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
add_module_names = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_title = "tangentlens"
html_theme = "pydata_sphinx_theme"
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "show_nav_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
}
html_sidebars = {"index": []}
html_show_sourcelink = False


def setup(app):  # noqa: ANN001, ANN201
    """Let Sphinx read docstrings as this project writes them, before Napoleon reads their sections."""
    app.connect("autodoc-process-docstring", _in_sphinx_words, priority=400)


def _in_sphinx_words(app, what, name, obj, options, lines):  # noqa: ANN001, ANN202
    """Make code of what stands between backticks, and leave the bars and stars of formulas as they are."""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            parts = re.split(r"(`[^`]+`)", line)
            lines[number] = "".join(
                f"`{part}`" if part.startswith("`") else re.sub(r"([|*])", r"\\\1", part) for part in parts
            )
