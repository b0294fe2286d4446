"""MetaSchedule's databases as tables: written by hand, damaged lines included."""

import base64
import json

import pytest

from pruner.data.metaschedule import (
    decisions_of,
    find_databases,
    read_records,
    read_workloads,
    skeleton,
)
from pruner.data.quarantine import MalformedError, Quarantine

STEPS = [
    ["GetBlock", [], ["C", "main"], ["b0"]],
    ["GetLoops", ["b0"], [], ["l1"]],
    ["SamplePerfectTile", ["l1"], [2, 16], ["v2", "v3"]],
    ["SampleComputeLocation", ["b0"], [], ["l4"]],
    ["EnterPostproc", [], [], []],
    ["SampleCategorical", [], [[1, 2], [0.5, 0.5]], ["v5"]],
]
TARGET = {"kind": "llvm"}


def record(tile, location, costs=(1e-3, 2e-3), workload=0):
    decisions = [[2, tile], [3, location], [5, 1]]
    return [workload, [[STEPS, decisions], list(costs), TARGET, []]]


def packed(text):
    content = text.encode()
    return base64.b64encode(len(content).to_bytes(8, "little") + content).decode()


@pytest.fixture
def folder(tmp_path):
    function = packed('{"root": {}}')
    workloads = [["123", function], ["124", "%%%"], ["125", packed("[]")], ["../../123", function]]
    lines = [json.dumps(line) for line in workloads]
    (tmp_path / "database_workload.json").write_text("\n".join(lines) + "\n")
    lines = [
        json.dumps(record([4, 8], -1)),
        json.dumps(record([8, 4], 0, costs=[1e10])),
        json.dumps(record([2, 16], -2, costs=[])),
        "[0, [[]",
        json.dumps({"i": 1}),
        json.dumps([0, 1]),
    ]
    (tmp_path / "database_tuning_record.json").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_records_have_decisions_before_postprocessing_and_costs(folder):
    [(_, path)], _ = find_databases(folder)
    with Quarantine() as quarantine:
        found = list(read_records(path, quarantine))
    assert [decisions_of(one) for one in found] == [[4, 8, -1], [8, 4, 0], [2, 16, -2]]
    assert [one.costs_s for one in found] == [(1e-3, 2e-3), (), ()]
    assert len({skeleton(one) for one in found}) == 1
    assert found[0].trace[0][0][0] == "GetSBlock"  # today's name
    assert found[0].target == TARGET
    assert quarantine.counts == {"malformed_json": 1, "not_a_record": 2}


def test_functions_are_unpacked_and_damaged_ones_set_aside(folder):
    [(path, _)], _ = find_databases(folder)
    with Quarantine() as quarantine:
        found = read_workloads(path, quarantine)
    assert {n: (w.hash, w.module) for n, w in found.items()} == {0: ("123", b'{"root": {}}')}
    assert quarantine.counts == {"bad_field": 3}  # a name that would leave the folder among them


def test_a_trace_without_a_decision_is_refused(folder):
    [(_, path)], _ = find_databases(folder)
    first = next(read_records(path, Quarantine()))
    first.trace[1].pop()
    with pytest.raises(MalformedError, match="SampleComputeLocation has no decision"):
        decisions_of(first)
