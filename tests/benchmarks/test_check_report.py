"""The check of the HTML report says what is wrong, and that nothing was checked where there is no browser."""

import pytest

from benchmarks import check_report

GOOD = {"images": [["a", True]] * 5, "overflow": 0, "outside": [], "size": 14}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"images": [["a", True]] * 4 + [["b", False]]}, "'b' is missing"),
        ({"images": []}, "0 images instead of 5"),
        ({"overflow": 7}, "7 pixels too wide"),
        ({"outside": ["http://example.org/x"]}, "asks for http://example.org/x"),
        ({"size": 9}, "text of 9 pixels"),
    ],
)
def test_the_check_of_the_report_can_fail(change, fault):
    assert check_report.faults(GOOD) == []
    assert any(fault in wrong for wrong in check_report.faults(GOOD | change))


def test_no_browser_is_not_a_pass(capsys):
    assert check_report.main(["--browser", "no-such-browser"]) == 1
    assert "nothing was checked" in capsys.readouterr().err
