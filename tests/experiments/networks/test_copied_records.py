"""Records of a run's first seconds, without TVM."""

import json

import pytest

from experiments.networks.prefixes import copy_records
from pruner.errors import DataError
from tests.study.network.fabricated import trial


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
