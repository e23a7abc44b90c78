"""The device of ``SKAL_TEST_DEVICE``, and the table that is printed at the end."""

import os

import pytest

DEVICE = os.environ.get("SKAL_TEST_DEVICE", "")
ROWS = []  # a strategy, what became of it, and the ratio of seconds


def pytest_collection_modifyitems(items):
    reason = "set SKAL_TEST_DEVICE to a device: cuda, mps, or xla:0 in the environment of nox -s devices"
    for item in items:
        if item.get_closest_marker("device") and not DEVICE:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def device():
    """The device, awake: autograd makes its threads for the devices that it knows at the first backward pass."""
    import torch

    if DEVICE.startswith("xla"):
        import torch_xla

        # each operation is compiled by itself: whole queries take minutes to compile
        torch_xla.experimental.eager_mode(True)
    torch.zeros(1, device=DEVICE)
    return DEVICE


@pytest.fixture(scope="session")
def rows():
    return ROWS


def pytest_terminal_summary(terminalreporter):
    if ROWS:
        from benchmarks._measure import markdown

        header = ["strategy", "picks", "largest difference of their metrics"]
        terminalreporter.write_line("\n" + markdown(header, [row[:3] for row in ROWS]))
        times = ", ".join(f"{name} {ratio:.2g}" for name, *_, ratio in ROWS if ratio)
        terminalreporter.write_line(f"\nSeconds there for one on the processor: {times}.")
