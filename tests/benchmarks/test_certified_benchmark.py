"""The benchmark of certificates counts looks and broken promises, and compares designs on the same models."""

from benchmarks.certified import CHECKS, compare_checks, compare_designs, compare_populations, false_certificates, main


def test_both_ways_to_spend_the_chance_are_audited_again_and_again():
    split, whole = false_certificates(2, n=2000)
    assert (split[0], whole[0]) == ("Certified", "Unsplit")
    assert split[1] == whole[1] == 2
    assert float(split[2]) >= 1
    assert split[3].endswith(" %")


def test_designs_are_compared_on_the_same_models(monkeypatch):
    monkeypatch.delenv("SKAL_DATA_HOME", raising=False)
    rows = compare_designs(1, n_audits=1)
    assert {row[0] for row in rows} == {"digits"}
    widths = {(row[1], row[2]): float(row[3]) for row in rows}
    assert widths[40, "planned anew, accuracy_sequence"] > widths[40, "by chance, Wilson"]


def test_a_draw_from_the_pool_is_narrower_than_one_of_new_samples(monkeypatch):
    monkeypatch.delenv("SKAL_DATA_HOME", raising=False)
    widths = {(row[1], row[2]): float(row[3]) for row in compare_populations(1, n_audits=1)}
    assert widths[100, "the pool"] < widths[100, "new samples"]


def test_draws_of_the_last_check_are_compared_on_the_same_pools(monkeypatch):
    monkeypatch.delenv("SKAL_DATA_HOME", raising=False)
    rows = compare_checks(1)
    assert {(row[0], row[1]) for row in rows} == {("simulated", 7)}
    shares = {(row[2], row[3]): float(row[4].rstrip(" %")) for row in rows}
    assert len(shares) == 3 * len(CHECKS)
    assert min(shares.values()) > 0
    assert shares[100, "as plan, betting"] < shares[100, "by chance, exact"]


def test_parts_can_be_left_out(capsys):
    main(["--simulated", "0", "--loops", "0", "--models", "0", "--populations", "0", "--checks", "0"])
    assert capsys.readouterr().out == ""
