"""experiments/networks/run.py: what it would run, and the tables from the cells there are."""

import pandas as pd
import pytest

from pruner.cli.shared.script import options_of
from pruner.errors import DataError
from pruner.files import write_json
from pruner.study.book.items import load_item
from pruner.study.book.page import build_page
from tests.study.network.fabricated import contender, fabricate

ONE = ("networks=[tiny]", "many_seeds=[]", "long=[]", "seeds=1")
OURS = [("conv_a", 1.0, 1.0), ("dense_b", 1.0, 2.0)]  # 3 s after 2 s
RIVAL = [("conv_a", 2.0, 10.0), ("dense_b", 2.0, 20.0)]  # 6 s after 20 s


@pytest.fixture
def item(script):
    return script("networks")


@pytest.fixture
def options(item, tmp_path):
    return lambda *words: options_of(
        item["Options"], [*ONE, f"out={tmp_path / 'networks'}", *words]
    )


def listed(folder):
    tasks = folder / "networks" / "tune" / "tiny-tasks"
    tasks.mkdir(parents=True)
    write_json(tasks / "metrics.json", {"num_tuned": 7})


def finished(item, options, policy, trials, network_s, **more):
    folder = item["Campaign"](options).folder("tiny", policy, 0)
    fabricate(folder, trials, **more)
    write_json(folder / "deploy.json", {"latency_s": {"median": network_s}})
    return folder


def test_both_policies_get_as_many_trials_as_there_are_tasks(item, options, tmp_path):
    listed(tmp_path)
    steps = {step.name: step for step in item["Campaign"](options()).steps()}
    assert len(steps) == 6  # the tasks; tuned and built by both; beside others
    for policy in ("ours", "metaschedule"):
        words = steps[f"tiny-{policy}-20-0"].words
        assert "budget.trials=140" in words
        assert "budget.batch=16" in words
    beside = steps["tiny-ours-20-0, beside others"].words
    assert beside[-1].endswith("tiny-metaschedule-20-0]")


def test_the_plan_counts_what_is_missing_at_the_speed_of_what_is_there(item, options, tmp_path):
    given = options("plan=true")
    listed(tmp_path)
    finished(item, given, "ours", OURS, 1.0)
    times = [{"name": "x", "kind": "metaschedule", "size": 70, "seconds": 1800.0}]
    write_json(tmp_path / "networks" / "seconds.json", times)
    found = item["run"](given)
    # 140 trials of MetaSchedule at the speed of those 70: an hour; building and comparing: guesses
    assert found == {"steps": 3, "hours": round(1 + 60 / 3600 + 420 / 3600, 2)}


def test_the_tables_and_the_book_come_from_the_cells_there_are(item, options, tmp_path, repository):
    given = options("summary=true")
    with pytest.raises(DataError, match="no finished cell"):
        item["run"](given)
    rival = finished(item, given, "metaschedule", RIVAL, 8.0)
    rows = [contender("ours", 2.0), contender("eager", 5.0), contender(rival.name, 8.0)]
    finished(item, given, "ours", OURS, 2.0, contenders=rows)
    assert item["run"](given)["cells"] == 2
    table = pd.read_csv(tmp_path / "networks" / "summary.csv").set_index("policy")
    assert table.speedup["ours"] == 10.0  # 20 s over 2 s
    assert table.network_over_rival["ours"] == 0.25
    others = pd.read_csv(tmp_path / "networks" / "contenders.csv").set_index("contender")
    assert others.over_ours.to_dict() == {"ours": 1.0, "eager": 2.5, "MetaSchedule": 4.0}
    text = (tmp_path / "networks" / "tables.md").read_text()
    assert "| tiny | ours | 1 | 2 | 0.7 | 3000.00 | 2000.00 | 2 | 10.00 | 0.25 |" in text
    assert "| tiny | 2000.00 | 5000.00 | 8000.00 |" in text
    drawn = (tmp_path / "networks" / "networks.svg").read_text()
    assert all(name in drawn for name in ("tiny", "eager", "MetaSchedule"))
    book = load_item(repository / "experiments" / "networks")
    page = build_page([book], results=tmp_path)
    numbers = {one.number.name: one.value for _, one in page.numbers}
    assert [value for name, value in numbers.items() if "time to its final" in name] == [10.0]
    assert len(page.drawings) == 3
