"""Sphinx configuration: `make docs` builds the site without a network, and warnings are errors."""

import skal.loop
import skal.strategies

project = "skal"
author = "The skal developers"
copyright = f"2026, {author}"
version = release = skal.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx-mathjax-offline",  # a copy of MathJax in the site, instead of a content delivery network
]
templates_path = ["_templates"]
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

autosummary_generate = True
autosummary_imported_members = True  # what a package exports is defined in its private modules
autosummary_ignore_module_all = False  # and its __all__ says what that is
# a strategy's class and its function differ in case alone, which some file systems do not tell apart
autosummary_filename_map = {
    f"skal.strategies.{name}": f"skal.strategies.{name}-function" for name in skal.strategies.__all__ if name.islower()
}
# skal exports some names again: they are indexed on the page of the module that they come from alone
autosummary_context = {"exported_again": [*skal.strategies.__all__, *skal.loop.__all__]}
autodoc_typehints = "none"  # numpydoc's Parameters have them already
numpydoc_show_class_members = False

html_theme = "pydata_sphinx_theme"
html_title = f"skal {version}"
html_theme_options = {"navbar_end": ["theme-switcher"], "show_prev_next": False}
html_sidebars = {"changelog": []}


def skip_metadata_requests(app, what, name, obj, skip, options):
    """Leave out ``set_fit_request`` and its like, which scikit-learn makes for every estimator."""
    return True if name.startswith("set_") and name.endswith("_request") else None


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-skip-member", skip_metadata_requests)
