"""experiments/tune/run.py: times to a rival's latency and what they are to the rival's own."""

import json

import pandas as pd
import pytest

from tests.study.network.fabricated import trial

LATENCIES_S = {"ours": [4.0, 1.0, 3.0], "metaschedule": [9.0, 5.0, 2.0], "ansor": [8.0, 0.5, 0.5]}


@pytest.fixture
def item(script, tmp_path):
    """A run of one operator whose trials end after 10, 20 and 30 seconds, ours after 1, 2 and 3."""
    found = script("tune")
    for policy, latencies_s in LATENCIES_S.items():
        folder = tmp_path / "tune" / found["cell_name"]("matmul", policy, 0, 3)
        folder.mkdir(parents=True)
        seconds = {"sample": 1.0, "draft": 2.0, "verify": 3.0, "build": 10.0, "train": 24.0}
        metrics = {"total_seconds": 40.0, "invalid_share": 0.0, "seconds": seconds}
        (folder / "metrics.json").write_text(json.dumps(metrics))
        step = 1.0 if policy == "ours" else 10.0
        lines = [trial(n, "t", s, step * n) for n, s in enumerate(latencies_s, 1)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "trials.jsonl").write_text(text)
    return found


def test_speedups_exploration_and_curves_by_hand(item, tmp_path):
    table = pd.DataFrame(item["rows_of"](tmp_path, 3, 1))
    ours = item["summarise"](table).set_index("policy").loc["ours"]
    assert ours.final_latency_s == 1.0
    # MetaSchedule ends at 2 s after 30 s; our second program, after 2 s, is faster
    assert (ours.trials_to_metaschedule, ours.seconds_to_metaschedule) == (2, 2.0)
    assert ours.speedup_to_metaschedule == 15.0
    assert ours.final_over_metaschedule == 0.5
    # Ansor's 0.5 s is never reached
    assert ours.seconds_to_ansor == float("inf")
    assert ours.speedup_to_ansor == 0.0
    assert ours.final_over_ansor == 2.0
    (ours,) = [row for row in item["rows_of"](tmp_path, 3, 1) if row["policy"] == "ours"]
    assert ours["exploration_share"] == (1 + 2 + 3) / 40
    curves = item["curves"](tmp_path, 3, 1).set_index(["policy", "trials"]).relative_latency
    assert curves["ours"].to_dict() == {1: 8.0, 2: 2.0}  # the third program is no better
    assert curves["ansor"].to_dict() == {1: 16.0, 2: 1.0}


def test_an_interrupted_cell_is_not_finished(item, tmp_path):
    folder = tmp_path / "tune" / item["cell_name"]("matmul", "ours", 0, 3)
    assert item["finished"](folder / "metrics.json")
    metrics = json.loads((folder / "metrics.json").read_text()) | {"interrupted": True}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    assert not item["finished"](folder / "metrics.json")
    assert {row["policy"] for row in item["rows_of"](tmp_path, 3, 1)} == {"metaschedule", "ansor"}
    assert "ours" not in set(item["curves"](tmp_path, 3, 1).policy)
