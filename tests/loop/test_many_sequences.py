"""Labels through kills and through random sequences of operations: few here, many in the benchmarks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = {
    "kills": (["benchmarks.kill_labels", "--kills", "8", "--per-project", "2"], "none is at another sample"),
    "sequences": (["benchmarks.label_sequences", "--examples", "12", "--steps", "10"], "agree with the model"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_labels_are_never_lost_or_misplaced(name):
    """In processes of their own: they fork, and a process that has started threads must not."""
    command, message = COMMANDS[name]
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    if os.path.isdir("/dev/shm"):  # a kill of the process loses nothing that was written; disks are slow
        environment["TMPDIR"] = "/dev/shm"
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, env=environment, cwd=root, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert message in done.stdout
