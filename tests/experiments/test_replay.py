"""The summary of experiments/replay says what the rows at hand allow, never NaN."""

import csv
import json

import pytest


@pytest.fixture
def summary(script, repository, tmp_path):
    def of(keep):
        with (repository / "experiments/replay/results.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if keep(row)]
        with (tmp_path / "rows.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        found = script("replay")["summarise"](tmp_path / "rows.csv")
        assert "NaN" not in json.dumps(found)
        return found

    return of


def test_all_rows_give_the_committed_summary(summary, repository):
    committed = json.loads((repository / "experiments/replay/summary.json").read_text())
    assert summary(lambda row: True) == committed


def test_one_policy_has_means_and_nothing_to_be_compared_with(summary, script):
    everything = summary(lambda row: True)
    for policy in script("replay")["POLICIES"]:
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
