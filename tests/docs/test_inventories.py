"""The links to other projects, and the version switcher: on where there is a network and a home, off elsewhere."""

import json
import re
import runpy
from pathlib import Path

import pytest

import skal

DOCS = Path(__file__).parents[2] / "docs"
INVENTORIES = runpy.run_path(str(DOCS / "inventories.py"))


def test_a_build_without_network_asks_nobody():
    assert INVENTORIES["mapping"]({}) == {}
    assert INVENTORIES["switcher"]("0.1.0", {}) == {}


@pytest.mark.parametrize("environ", [{"SKAL_DOCS_INTERSPHINX": "1"}, {"READTHEDOCS": "True"}])
def test_with_a_network_names_of_other_packages_become_links(environ):
    found = INVENTORIES["mapping"](environ)
    assert {"sklearn", "skorch", "torch", "modAL"} <= set(found)
    assert all(re.fullmatch(r"https://\S+/", url) and inventory is None for url, inventory in found.values())


def test_the_switcher_finds_its_list_beside_the_versions():
    settings = INVENTORIES["switcher"]("0.1.0", {"SKAL_DOCS_URL": "https://example.org/skal/"})
    assert settings["switcher"] == {
        "json_url": "https://example.org/skal/_static/versions.json",
        "version_match": "0.1.0",
    }
    assert "version-switcher" in settings["navbar_start"]


def test_the_list_of_versions_has_this_one():
    versions = json.loads((DOCS / "_static" / "versions.json").read_text("utf-8"))
    assert skal.__version__ in {entry["version"] for entry in versions}
    assert all({"name", "version", "url"} <= set(entry) for entry in versions)
