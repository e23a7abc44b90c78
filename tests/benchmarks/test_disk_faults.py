"""Every operation on the disk fails once, and nothing is lost; the page does so in tests/labelling/test_disk.py."""

import pytest

from benchmarks import disk_faults


@pytest.mark.filterwarnings("ignore:The cache in:skal.exceptions.SkalWarning")
@pytest.mark.parametrize("fault", disk_faults.FAULTS)
def test_a_disk_that_fails_under_a_session_loses_nothing(fault):
    counts = disk_faults.run("a session", disk_faults.FAULTS[fault])
    assert counts.total() > 40
    assert counts["refused, then taken"] > 20
    assert not {outcome: counts[outcome] for outcome in disk_faults.BAD if counts[outcome]}
