"""NPC's benchmark runs, at sizes that say nothing, and its rivals compute what it claims."""

import numpy as np
import pytest

from benchmarks import npc
from skal.strategies._spectral import draw_batches


@pytest.fixture(scope="module")
def problem():
    return npc.blocks(npc.digits_kernel(40), 8), draw_batches(32, 4, 10, np.random.default_rng(0))


@pytest.mark.parametrize("name", list(npc.RIVALS))
def test_rivals_agree(problem, name):
    np.testing.assert_allclose(npc.RIVALS[name](*problem), npc.by_dense(*problem), rtol=0.05)


def test_speed_names_the_same_winner():
    lines = npc.speed_table(timed=40, quick=True).splitlines()[2:]
    assert len(lines) == 4
    assert len({line.split("|")[-2].split(",")[0] for line in lines}) == 1


def test_noise():
    lines = [line.split("|") for line in npc.noise_table(quick=True).splitlines()[2:]]
    tau = {(line[1].strip(), line[2].strip()): float(line[3]) for line in lines}
    assert tau["100", "last_layer, λ_min"] > 0.99
    assert abs(tau["150", "last_layer, λ_min"]) < 0.6
    assert tau["150", "pntk, λ_min"] > 0.99
    assert tau["150", "last_layer, log det (the fallback)"] > 0.99


def test_the_other_tables_run_and_unknown_ones_are_refused(capsys):
    assert npc.main(["growth", "gain", "theorem", "--quick"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n### ") == 3
    assert "### theorem" in out
    with pytest.raises(SystemExit):
        npc.main(["nothing"])
    assert "Choose from: speed, growth, gain, theorem, noise" in capsys.readouterr().err
