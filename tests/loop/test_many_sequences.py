"""Labels through kills and through random sequences of operations: few here, many in the benchmarks."""

import importlib
import os
import tempfile

import pytest

from ..support.processes import READY

COMMANDS = {
    "kill_labels": ["--kills", "8", "--per-project", "2"],
    "label_sequences": ["--examples", "12", "--steps", "10"],
}


def run(name):
    """The command of a benchmark, in the process that this is called in."""
    if os.path.isdir("/dev/shm"):  # a kill of the process loses nothing that was written; disks are slow
        tempfile.tempdir = "/dev/shm"
    importlib.import_module(f"benchmarks.{name}").main(COMMANDS[name])


@pytest.mark.parametrize("name", COMMANDS)
def test_labels_are_never_lost_or_misplaced(name):
    """In processes of their own: they fork, and a process that has started threads must not."""
    process = READY.Process(target=run, args=(name,))
    process.start()
    process.join(400)
    assert process.exitcode == 0
