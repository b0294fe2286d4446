"""experiments/rounds/run.py: who meets Ansor, and who Ansor with four times the trials."""

import pytest

from pruner.search.offline.comparison import MethodRun
from tests.experiments.test_contest import curve


def test_ansor_with_more_trials_is_a_rival_of_its_own(script):
    item = script("rounds")
    known = item["contestants"]()
    ansor, longer = known["ansor"], known["ansor_longer"]
    assert (ansor.times, longer.times) == (1, 4)
    assert (longer.settings, longer.model) == (ansor.settings, ansor.model)
    cells = [
        MethodRun(method="ansor", seed=0, curve=curve(4.0, 3.0, seconds=10.0)),
        MethodRun(method="ansor_longer", seed=0, curve=curve(*8 * [2.0], seconds=40.0)),
        MethodRun(method="ours", seed=0, curve=curve(3.0, 2.2, seconds=5.0)),
    ]
    rows = {(row["against"], row["method"]): row for row in item["result_rows"](cells, "v100")}
    assert set(rows) == {
        ("ansor", "ansor"), ("ansor", "ours"),
        ("ansor_longer", "ansor"), ("ansor_longer", "ansor_longer"), ("ansor_longer", "ours"),
    }  # fmt: skip
    ours = rows["ansor_longer", "ours"]
    assert (ours["final_over"], ours["cost_share"]) == (pytest.approx(1.1), 5 / 40)
    assert rows["ansor", "ours"]["speedup"] == 10 / 2.5  # 3 s with its first trial of two
    assert len(item["result_rows"]([cells[0], cells[2]], "v100")) == 2  # nobody had more trials
