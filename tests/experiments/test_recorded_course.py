"""Races with a recorded course: arithmetic by hand, and the page beside the tables."""

import re
from itertools import combinations

import numpy as np
import pytest

from experiments.common.contest import Ground
from experiments.recorded_course.order import order_rows, searches
from experiments.recorded_course.run import (
    BUDGET,
    CHANCE,
    POOL,
    Options,
    chance_measures,
    measures,
    run,
    summary_rows,
    unreached,
)
from pruner.cli.shared.script import Data
from pruner.data.metaschedule import StoredRecord
from pruner.errors import PrunerError
from pruner.files import read_table
from tests.paths import REPOSITORY

FOLDER = REPOSITORY / "experiments" / "recorded_course"


def test_choices_without_a_good_program_by_hand():
    # two good of five; without them: 3 of 5 single programs, 3 of 10 pairs, 1 of 10 triples
    assert unreached(5, 2, 5) == pytest.approx([1, 3 / 5, 3 / 10, 1 / 10, 0, 0])
    orders = list(combinations(range(5), 2))  # places of the good programs, equally likely
    mean = np.mean([min(places) + 1 for places in orders])
    assert unreached(5, 2, 5)[:-1].sum() == pytest.approx(mean)


def test_a_run_counts_its_trials_to_the_goals_and_may_end_early():
    best = np.array([4.0] * 15 + [2.0] * 47 + [1.04, 1.0, 1.0])
    found = measures(best, 65)
    trials = [found[f"trials_to_{goal}"] for goal in ("1.00", "1.01", "1.05")]
    assert trials == [64, 64, 63]
    performance = [found[f"performance_{after}"] for after in (16, 64, 200)]
    assert performance == [0.5, 1.0, None]
    short = measures(best, 63)  # fewer trials than the run has: the last program is out of reach
    assert (short["trials_to_1.00"], short["reached_1.00"]) == (63, 0)
    assert (short["trials_to_1.05"], short["reached_1.05"]) == (63, 1)
    found = measures(np.array([4.0, 2.0]), 64)
    assert (found["performance_64"], found["trials_to_1.05"]) == (0.5, 64)


def test_chance_counts_all_orders_of_a_pool():
    latency_s = np.array([2.0, 1.0, 4.0, 1.04])
    whole = chance_measures(latency_s, 4)
    assert whole["trials_to_1.00"] == pytest.approx((1 + 2 + 3 + 4) / 4)
    assert whole["trials_to_1.05"] == pytest.approx(5 / 3)  # two of four: (4 + 1) / (2 + 1)
    assert whole["reached_1.00"] == 1
    two = chance_measures(latency_s, 2)
    assert two["trials_to_1.00"] == pytest.approx((1 + 2 + 2 + 2) / 4)
    assert two["reached_1.00"] == pytest.approx(1 / 2)
    assert two["trials_to_1.05"] == pytest.approx((1 + 1 + 2 + 2) / 4)
    assert two["reached_1.05"] == pytest.approx(5 / 6)  # all pairs but that of 2 s and 4 s
    many = chance_measures(np.array([1.0] + [2.0] * 16), 16)
    assert many["performance_16"] == pytest.approx((16 * 1.0 + 1 * 0.5) / 17)


def row(task, method, seed, until=BUDGET, **found):
    goals = {f"{name}_{goal}": 1.0 for name in ("trials_to", "reached")
             for goal in ("1.00", "1.01", "1.05")}  # fmt: skip
    empty = {f"performance_{after}": "" for after in (16, 64, 200)}
    return {"task": task, "method": method, "seed": seed, "until": until, **goals, **empty, **found}


def test_a_summary_has_geometric_means_over_tasks_of_means_over_seeds():
    chance = {"performance_16": 0.25}
    rows = [
        row("a", "ours", 0, **{"trials_to_1.00": 10.0, "reached_1.00": 1.0, "performance_16": 0.5}),
        row("a", "ours", 1, **{"trials_to_1.00": 20.0, "reached_1.00": 0.0, "performance_16": 0.7}),
        row("b", "ours", 0, **{"trials_to_1.00": 60.0, "reached_1.00": 0.0}),
        row("b", "ours", 1, **{"trials_to_1.00": "60", "reached_1.00": "0"}),  # as a file has it
        row("a", CHANCE, 0, **chance),
        row("b", CHANCE, 0),
        row("a", CHANCE, 0, POOL, **chance),
    ]
    ours, theirs, whole = summary_rows(rows)
    assert (ours["method"], ours["num_tasks"], ours["num_seeds"]) == ("ours", 2, 2)
    assert ours["trials_to_1.00"] == pytest.approx((15 * 60) ** 0.5)
    assert ours["reached_1.00"] == pytest.approx(0.25)
    assert (ours["tasks_16"], ours["tasks_64"]) == (1, 0)
    assert ours["performance_16"] == pytest.approx(0.6)
    assert ours["p_over_chance_16"] == pytest.approx(0.5)  # of one task, half the signs
    assert "p_over_chance_16" not in theirs
    assert (whole["until"], whole["num_tasks"]) == (POOL, 1)


def test_a_task_alone_shares_the_features_and_has_its_own_pools():
    every = Ground(root=None, platform="a100", budget=None)
    one = every.of_task("key")
    assert (one.tuned, every.tuned) == (("key",), None)
    assert one._read is every._read
    assert one._pools is not every._pools


def test_absent_records_are_an_error_of_one_line(tmp_path):
    with pytest.raises(PrunerError, match=r"^data\.root=.*no such folder.*$"):
        run(Options(data=Data(root=str(tmp_path / "nowhere")), out=str(tmp_path)))


def test_a_search_begins_where_all_tasks_come_in_turn():
    assert searches([0, 0, 1, 2, 2, 1, 0, 1, 2, 2]) == [range(6), range(6, 10)]
    assert searches([0, 0, 1, 2, 1, 0]) == [range(6)]


def stored(workload, line, decisions, *costs_s):
    return StoredRecord(
        workload=workload, trace=[[], decisions], skeleton=b"s", costs_s=costs_s, target="cuda",
        line=line,
    )  # fmt: skip


def test_a_search_counts_what_it_measured_and_repeated():
    records = [
        stored(0, 0, [[1, 4]], 2.0, 4.0), stored(1, 1, [[1, 4]]),
        stored(0, 2, [[1, 2]], 1.0), stored(1, 3, [[1, 2]], 5.0),
    ]  # fmt: skip
    records.insert(2, stored(1, 9, [[1, 4]], 7.0))  # the same program as before
    first, second, again, last = order_rows(records)
    assert (first["search"], first["task"], first["best_s"]) == (1, 0, 3.0)
    assert (second["records"], second["measured"], second["repeated"]) == (2, 1, 1)
    assert (again["search"], again["first_median_s"], last["best_s"]) == (2, 1.0, 5.0)


@pytest.mark.parametrize(("heading", "until"), [("## Equal trials", BUDGET), ("## All", POOL)])
def test_the_tables_of_the_page_are_the_summary(heading, until):
    rows = read_table(FOLDER / "summary.csv")
    summary = {row["method"]: row for row in rows if row["until"] == until}
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    section = page.split(heading)[1].split("\n## ")[0]
    lines = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE))
    assert lines.keys() == summary.keys()
    for method, rest in lines.items():
        assert rest.split(" | ") == list(_cells(summary[method], until)), method


def _cells(found, until):
    """The cells of a method: seeds, trials with the share of runs that arrive, performances."""
    if until == BUDGET:
        yield found["num_seeds"]
    for goal in ("1.00", "1.01", "1.05"):
        trials = f"{float(found[f'trials_to_{goal}']):.0f}"
        share = f"{float(found[f'reached_{goal}']):.2f}".removeprefix("0")
        yield trials if until == POOL else f"{trials} ({share})"
    for after in (16, 64) if until == BUDGET else (16, 64, 200):
        yield f"{float(found[f'performance_{after}']):.3f}".removeprefix("0")
