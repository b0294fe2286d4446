"""When a run was as fast as a rival: which times are built."""

from types import SimpleNamespace

import pytest

from experiments.networks.prefixes import Point, complete, grid, halved, known, settled
from pruner.tune.run.journal import Trial
from tests.study.network.fabricated import trial
import json
from experiments.networks.prefixes import copy_records
from pruner.errors import DataError

ROWS = [("a", 0.5, 1.0), ("b", 0.5, 4.0), ("a", 0.25, 6.0), ("b", 0.75, 16.0)]
TRIALS = [Trial(**trial(n, *row)) for n, row in enumerate(ROWS, 1)]


def task(name, tuned=True):
    return SimpleNamespace(name=name, tuned=tuned)


def point(t_s, over):
    return Point(whose="ours", t_s=t_s, measured=known(TRIALS, t_s), median_s=over, rival_s=1.0)


def test_the_grid_has_each_state_once():
    # of 16 s: after 1 s (one program), 2 s (still one), 4 s (two), 8 s (three), the end (four)
    assert grid(TRIALS, (1 / 16, 1 / 8, 1 / 4, 1 / 2), after_s=0.0) == [0.0, 1.0, 4.0, 8.0, 16.0]
    assert grid(TRIALS, (1 / 8, 1 / 2), after_s=4.0) == [4.0, 8.0, 16.0]
    assert grid([], (1 / 2,), after_s=0.0) == [0.0]


def test_a_network_is_complete_with_all_tuned_tasks_and_settled_with_its_last_improvement():
    assert complete(TRIALS, [task("a"), task("b"), task("c", tuned=False)]) == 4.0
    assert complete(TRIALS, [task("a"), task("c")]) == float("inf")
    assert settled(TRIALS) == 6.0  # the fourth program is slower than the second


@pytest.mark.parametrize(("over", "reached"), [(0.5, True), (1.0, True), (1.01, False)])
def test_reached_is_at_or_below_the_rival(over, reached):
    assert point(1.0, over).reached is reached


def test_a_failed_build_reaches_nothing():
    failed = Point(whose="ours", t_s=1.0, measured=1, rival_s=1.0, error="no compiler")
    assert not failed.reached
    assert failed.over_rival is None


def test_halving_ends_at_the_first_hit_and_builds_nothing_twice():
    asked = []

    def measure(t_s):
        asked.append(t_s)
        return point(t_s, 0.9 if t_s >= 5.0 else 1.1)

    points = [point(0.0, 2.0), point(2.0, 1.5), point(10.0, 0.8), point(16.0, 0.7)]
    found = halved(points, measure, lambda t_s: int(10 * t_s))
    assert asked == [6.0, 4.0, 5.0]
    assert [p.t_s for p in found if p.reached] == [6.0, 5.0]
    points = [point(0.0, 2.0), point(16.0, 0.8)]
    asked = []

    def measure(t_s):
        asked.append(t_s)
        return point(t_s, 1.1)

    halved(points, measure, lambda t_s: known(TRIALS, t_s))
    # 8 s: three programs, slower; 12 s and 14 s: the same three
    assert asked == [8.0]


@pytest.mark.parametrize("medians", [(0.5, 0.4), (2.0, 1.5)])
def test_nothing_is_halved_where_the_draft_is_enough_or_nothing_is(medians):
    points = [point(t_s, over) for t_s, over in zip((0.0, 16.0), medians, strict=True)]
    assert halved(points, pytest.fail, pytest.fail) == []


@pytest.fixture
def run(tmp_path):
    """Measured after 1, 3 and 5 s, failed after 2; a kill left a record that no line tells of."""
    rows = [
        trial(1, "a", 0.5, 1.0),
        trial(2, "b", 0.0, 2.0, error="run_error"),
        trial(3, "b", 0.25, 3.0),
        trial(4, "a", 0.125, 5.0),
    ]
    (tmp_path / "trials.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    records = [[0, [[], [s], {}, []]] for s in (0.5, 0.75, 0.25, 0.125)]
    text = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "database_tuning_record.json").write_text(text)
    (tmp_path / "database_workload.json").write_text("workloads\n")
    return tmp_path


def costs(place):
    lines = (place / "database_tuning_record.json").read_text().splitlines()
    return [json.loads(line)[1][1][0] for line in lines]


@pytest.mark.parametrize(
    ("until_s", "wanted"), [(0.0, []), (1.0, [0.5]), (4.9, [0.5, 0.25]), (9, [0.5, 0.25, 0.125])]
)
def test_records_until_a_time(run, tmp_path, until_s, wanted):
    assert copy_records(run, until_s, tmp_path / "copy") == len(wanted)
    assert costs(tmp_path / "copy") == wanted
    assert (tmp_path / "copy" / "database_workload.json").is_file() == bool(wanted)


def test_a_database_that_lacks_measurements_is_refused(run, tmp_path):
    (run / "database_tuning_record.json").write_text("")
    with pytest.raises(DataError, match="1 measurements of the journal have no record"):
        copy_records(run, 2.0, tmp_path / "copy")
