"""Sphinx configuration: `make docs` builds the site without a network, and warnings are errors."""

import importlib
import pkgutil
import sys
from pathlib import Path

import skal.strategies

sys.path.insert(0, str(Path(__file__).parent))  # for inventories, and for tutorial_state, below
import inventories

project = "skal"
author = "The skal developers"
copyright = f"2026, {author}"
version = release = skal.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx_gallery.gen_gallery",
    "sphinx-mathjax-offline",  # a copy of MathJax in the site, instead of a content delivery network
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "tutorials"]  # the tutorials' sources: their pages are made in auto_tutorials

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

intersphinx_mapping = inventories.mapping()
intersphinx_disabled_reftypes = ["std:doc"]

autosummary_generate = True
autosummary_imported_members = True  # what a package exports is defined in its private modules
autosummary_ignore_module_all = False  # and its __all__ says what that is
# a strategy's class and its function differ in case alone, which some file systems do not tell apart
autosummary_filename_map = {
    f"skal.strategies.{name}": f"skal.strategies.{name}-function" for name in skal.strategies.__all__ if name.islower()
}
# what skal exports again is documented on the page of the module that it comes from alone
modules = [f"skal.{found.name}" for found in pkgutil.iter_modules(skal.__path__) if not found.name.startswith("_")]
homes = {
    name: package
    for package in modules
    for name in getattr(importlib.import_module(package), "__all__", ())
    if name in skal.__all__
}
autosummary_context = {"homes": homes}
autodoc_typehints = "none"  # numpydoc's Parameters have them already
numpydoc_show_class_members = False

# tutorials are run while the site is built: a failure in one of them, or a warning, breaks it off
sphinx_gallery_conf = {
    "examples_dirs": "tutorials",
    "gallery_dirs": "auto_tutorials",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "remove_config_comments": True,
    "show_signature": False,
    "write_computation_times": False,
    "reset_modules": ("matplotlib", "tutorial_state.reset"),
    "reset_modules_order": "both",
    "image_srcset": ["2x"],
    "ignore_repr_types": r"matplotlib\..*",  # a block that ends in a call on axes shows its figure, nothing else
}

html_theme = "pydata_sphinx_theme"
html_title = f"skal {version}"
html_static_path = ["_static"]
html_css_files = ["skal.css"]
html_theme_options = {
    "navbar_end": ["theme-switcher"],
    "show_prev_next": False,
    "header_links_before_dropdown": 4,
    # the home page is all content, and has wide code and a wide table
    "secondary_sidebar_items": {"**": ["page-toc", "sourcelink"], "index": []},
} | inventories.switcher(version)
html_sidebars = {page: [] for page in ("changelog", "contributing", "stability", "citing")}


def skip_metadata_requests(app, what, name, obj, skip, options):
    """Leave out ``set_fit_request`` and its like, which scikit-learn makes for every estimator."""
    return True if name.startswith("set_") and name.endswith("_request") else None


def resolve_exported_again(app, env, node, contnode):
    """A reference to ``skal.DynamicAL`` leads to ``skal.strategies.DynamicAL``."""
    package, _, name = node.get("reftarget", "").partition(".")
    first, *rest = name.split(".")
    if package != "skal" or first not in homes or node.get("refdomain") != "py":
        return None
    target = ".".join([homes[first], first, *rest])
    domain = env.get_domain("py")
    return domain.resolve_xref(env, node["refdoc"], app.builder, node["reftype"], target, node, contnode)


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-skip-member", skip_metadata_requests)
    app.connect("missing-reference", resolve_exported_again)
