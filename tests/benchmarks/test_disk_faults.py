"""Every operation on the disk fails once, with a full disk: nothing is lost, and what did not work is said."""

import errno

import pytest

from benchmarks import disk_faults


@pytest.mark.filterwarnings("ignore:The cache in:skal.exceptions.SkalWarning")
@pytest.mark.parametrize("kind", disk_faults.KINDS)
def test_a_full_disk_loses_nothing(kind):
    counts = disk_faults.run(kind, errno.ENOSPC)
    assert counts.total() > 40
    assert counts["refused, then taken"] > 20
    assert not {outcome: counts[outcome] for outcome in disk_faults.BAD if counts[outcome]}
