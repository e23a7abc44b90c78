"""The automatic hand that labels on the page."""

from benchmarks import label_hand


def test_without_data_it_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SKAL_DATA_HOME", str(tmp_path))
    label_hand.main(["hand"])
    assert "cifar10_sub, banking77, cifar10_features is not in $SKAL_DATA_HOME" in capsys.readouterr().err


def test_results_that_are_kept_are_printed_as_a_table(tmp_path, monkeypatch, capsys):
    for name in ("cifar10_sub", "banking77", "cifar10_features"):
        (tmp_path / f"{name}.npz").touch()
    monkeypatch.setenv("SKAL_DATA_HOME", str(tmp_path))
    kept = tmp_path / "kept.jsonl"
    line = (
        '{{"key": "CIFAR-10 pictures, {arm}, {seed}", "value": {{"model": "a linear classifier on features of net", '
        '"accuracy": {{"60": 0.5, "140": 0.6, "220": 0.{seed}}}, "page": [0.7, 0.125]}}}}\n'
    )
    kept.write_text("".join(line.format(arm=arm, seed=seed) for arm in label_hand.ARMS for seed in (0, 1)))
    label_hand.main(["hand", "--seeds", "2", "--samples", "CIFAR-10 pictures", "--kept", str(kept)])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "| samples | arm | model | 60 labels | 140 labels | 220 labels | guessing |"
    assert (
        "| CIFAR-10 pictures | default | net | 50.0 (50.0 … 50.0) | 60.0 (60.0 … 60.0) | 5.0 (0.0 … 10.0) |"
        in printed[2]
    )
