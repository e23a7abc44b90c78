"""The example that trains on several processes."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_two_processes_train_one_network_and_query_the_same_samples():
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command = [*launch, str(ROOT / "examples" / "several_devices.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.partition(": ") for line in done.stdout.splitlines() if line.startswith("process")]
    answers = {name: [text for who, _, text in lines if who == name] for name in ("process 0", "process 1")}
    assert len(answers["process 0"]) == 2
    assert answers["process 0"] == answers["process 1"]
