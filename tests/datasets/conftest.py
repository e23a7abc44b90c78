"""No test sees the data folder of the machine it runs on."""

import pytest


@pytest.fixture(autouse=True)
def _no_data_home(monkeypatch):
    monkeypatch.delenv("SKAL_DATA_HOME", raising=False)
