"""The summary of experiments/replay says what the rows at hand allow, never NaN."""

import csv
import importlib.util
import json
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def replay():
    path = REPOSITORY / "experiments/replay/run.py"
    spec = importlib.util.spec_from_file_location("replay_run", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def summary(replay, tmp_path):
    """The summary of the committed rows that `keep` accepts."""

    def of(keep):
        with (REPOSITORY / "experiments/replay/results.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if keep(row)]
        with (tmp_path / "rows.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        found = replay.summarise(tmp_path / "rows.csv")
        assert "NaN" not in json.dumps(found)
        return found

    return of


def test_all_rows_give_the_committed_summary(summary):
    committed = json.loads((REPOSITORY / "experiments/replay/summary.json").read_text())
    assert summary(lambda row: True) == committed


def test_one_policy_has_means_and_nothing_to_be_compared_with(summary, replay):
    everything = summary(lambda row: True)
    for policy in replay.POLICIES:
        alone = summary(lambda row, policy=policy: row["policy"] == policy)
        at = {policy: everything["relative_performance_at_20"][policy]}
        assert alone["relative_performance_at_20"] == at
        assert alone["share_reached"] == {policy: everything["share_reached"][policy]}


def test_policies_are_compared_where_all_of_them_ran(summary):
    def keep(row):
        return row["policy"] == "random" or (row["platform"] == "k80" and int(row["seed"]) < 3)

    fewer = summary(keep)
    assert fewer["platforms"] == ["k80"]
    same = summary(lambda row: row["platform"] == "k80" and int(row["seed"]) < 3)
    assert fewer == same
