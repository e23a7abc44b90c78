"""Links to other projects' documentation: looked up on the network if it may be used, left as plain names if not."""

import os

# where sphinx finds the names of other packages
PROJECTS = {
    "python": "https://docs.python.org/3/",
    "numpy": "https://numpy.org/doc/stable/",
    "sklearn": "https://scikit-learn.org/stable/",
    "skorch": "https://skorch.readthedocs.io/en/stable/",
    "torch": "https://docs.pytorch.org/docs/stable/",
    "modAL": "https://modal-python.readthedocs.io/en/latest/",
}
VARIABLE = "SKAL_DOCS_INTERSPHINX"


def mapping(environ=os.environ):
    """Sphinx's ``intersphinx_mapping``: empty unless the variable is set, or Read the Docs builds the site.

    The build must pass without a network, where a missing inventory would be a warning, and warnings are errors. Names
    of other packages are written as code then, which is what a reference without a target looks like anyway.
    """
    if environ.get(VARIABLE) == "1" or environ.get("READTHEDOCS") == "True":
        return {name: (url, None) for name, url in PROJECTS.items()}
    return {}


def switcher(version, environ=os.environ):
    """The theme's version switcher: the list of versions lies beside them, where the site is hosted."""
    home = environ.get("SKAL_DOCS_URL") or environ.get("READTHEDOCS_CANONICAL_URL")
    if not home:
        return {}
    settings = {"json_url": f"{home.rstrip('/')}/_static/versions.json", "version_match": version}
    # the list is published with the site: while that is built it may not be there yet
    return {"switcher": settings, "check_switcher": False, "navbar_start": ["navbar-logo", "version-switcher"]}
