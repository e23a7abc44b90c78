"""The cell in a real JupyterLab, where it is installed."""

import pytest

from benchmarks._label_page import Page
from benchmarks.label_notebook import missing, run


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_labels_in_jupyterlab_are_those_that_were_given(tmp_path):
    page = Page(tmp_path / "profile")
    try:
        said, found, printed = run(page, tmp_path / "book", 12)
    finally:
        page.close()
    assert len(said) == 12
    assert found == said
    assert printed == "12 labels"
