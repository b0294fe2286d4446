"""Tables of a campaign, with numbers that can be checked by hand."""

import pytest

from pruner.study.network.campaign import (
    Cell,
    contender_rows,
    curve_rows,
    reached,
    result_rows,
    summarise,
)
from pruner.study.network.run import read_network_run
from tests.study.network.fabricated import contender, fabricate

# The network calls conv_a twice and dense_b once: estimates 3, 2 and 1.5 s, after 2, 4, 8 s.
OURS = [("conv_a", 1.0, 1.0), ("dense_b", 1.0, 2.0), ("conv_a", 0.5, 4.0), ("dense_b", 0.5, 8.0)]
# The same at a tenth of the speed, ending at 2 s after 40 s (reached with the third trial).
RIVAL = [("conv_a", 1.0, 10.0), ("dense_b", 2.0, 20.0), ("conv_a", 0.5, 30.0),
         ("dense_b", 1.0, 40.0)]  # fmt: skip


@pytest.fixture
def cells(tmp_path):
    def cell(policy, trials, network_s):
        run = read_network_run(fabricate(tmp_path / policy, trials))
        return Cell(network="tiny", policy=policy, seed=0, run=run, network_s=network_s)

    return [cell("ours", OURS, 1.0), cell("metaschedule", RIVAL, 4.0)]


def test_the_time_to_the_rivals_final_latency(cells):
    ours, rival = result_rows(cells)
    assert (ours["estimate_s"], rival["estimate_s"]) == (1.5, 2.0)
    assert (ours["trials_to_rival"], ours["seconds_to_rival"]) == (3.0, 4.0)
    assert (rival["trials_to_rival"], rival["seconds_to_rival"]) == (4.0, 40.0)
    assert (ours["tasks"], ours["build_s"]) == (2, 30.0)


def test_the_summary_sets_them_in_proportion(cells):
    table = summarise(result_rows(cells)).set_index("policy")
    assert table.speedup.to_dict() == {"ours": 10.0, "metaschedule": 1.0}
    assert table.estimate_over_rival["ours"] == 0.75
    assert table.network_over_rival["ours"] == 0.25
    assert table.seeds.tolist() == [1, 1]


def test_a_latency_that_is_never_reached_takes_for_ever(cells):
    slow = Cell(network="tiny", policy="ours", seed=0, run=cells[1].run)
    fast = Cell(network="tiny", policy="metaschedule", seed=0, run=cells[0].run)
    assert reached(slow.curve, fast.final_s) == (float("inf"), float("inf"))
    table = summarise(result_rows([slow, fast])).set_index("policy")
    assert table.speedup["ours"] == 0.0
    assert table.estimate_over_rival["ours"] == pytest.approx(4 / 3)


def test_curves_are_relative_to_the_rivals_final_latency_and_seconds(cells):
    rows = {
        (row["policy"], row["share_of"], row["share"]): row["relative_latency"]
        for row in curve_rows(cells)
    }
    assert rows["ours", "trials", 0.5] == 1.5  # 3 s of 2 s after two of four trials
    assert rows["ours", "trials", 1.0] == 0.75
    assert rows["ours", "time", 0.1] == 1.0  # after 4 s of 40
    assert rows["ours", "time", 0.2] == 0.75
    assert ("metaschedule", "time", 0.4) not in rows  # 16 s: one of its tasks has no program
    assert rows["metaschedule", "time", 1.0] == 1.0


def test_contenders_are_relative_to_ours(tmp_path):
    failed = {"name": "compile", "label": "compile", "error": "no compiler"}
    entries = [contender("ours", 2.0), contender("eager", 5.0), failed]
    run = read_network_run(fabricate(tmp_path / "run", OURS, contenders=entries))
    ours, eager, compiled = contender_rows("tiny", run, "ours")
    assert (ours["over_ours"], eager["over_ours"]) == (1.0, 2.5)
    assert eager["ready_s"] == 3.0
    assert compiled == {"network": "tiny", "contender": "compile", "error": "no compiler"}
