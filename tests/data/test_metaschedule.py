"""MetaSchedule's databases as tables: written by hand, damaged lines included."""

import base64
import gzip
import json
import lzma
from dataclasses import replace

import pytest
import zstandard

from pruner.data.metaschedule import (
    decisions_of,
    find_databases,
    read_records,
    read_workloads,
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
        json.dumps(record([4, 8], -1)).replace("[5, 1]", "[Infinity, 1]"),
        json.dumps(record([4, 8], -1)).replace("0.001", "1" + "0" * 400),
    ]
    (tmp_path / "database_tuning_record.json").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_records_and_functions_are_unpacked_and_damaged_ones_set_aside(folder):
    [(_, path)], _ = find_databases(folder)
    with Quarantine() as quarantine:
        found = list(read_records(path, quarantine))
    assert [decisions_of(one) for one in found] == [[4, 8, -1], [8, 4, 0], [2, 16, -2]]
    assert [one.costs_s for one in found] == [(1e-3, 2e-3), (), ()]
    assert len({one.skeleton for one in found}) == 1
    assert found[0].trace[0][0][0] == "GetSBlock"  # today's name
    assert found[0].target == TARGET
    assert quarantine.counts == {"malformed_json": 1, "not_a_record": 3, "bad_field": 1}
    [(path, _)], _ = find_databases(folder)
    with Quarantine() as quarantine:
        found = read_workloads(path, quarantine)
    assert {n: (w.hash, w.module) for n, w in found.items()} == {0: ("123", b'{"root": {}}')}
    assert quarantine.counts == {"bad_field": 3}  # a name that would leave the folder among them


def test_a_trace_without_a_decision_or_with_another_value_is_refused(folder):
    [(_, path)], _ = find_databases(folder)
    first = next(read_records(path, Quarantine()))
    _, location = first.trace[1].pop()
    with pytest.raises(MalformedError, match="SampleComputeLocation has no decision"):
        decisions_of(first)
    for value in (None, "4", 2.5, True, [location, None], [[1]]):
        with pytest.raises(MalformedError, match="which is no integer"):
            decisions_of(replace(first, trace=[first.trace[0], [*first.trace[1], [3, value]]]))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress, zstandard.compress])
def test_databases_are_known_by_their_contents(folder, pack):
    """Other names, two pairs in a folder, compressed, with a log of Ansor beside them."""
    functions = (folder / "database_workload.json").read_bytes()
    records = (folder / "database_tuning_record.json").read_bytes()
    theirs = folder / "theirs"
    theirs.mkdir()
    for name, content in {
        "a_workloads.json": functions,
        "a_tuning_records.json": records,
        "b_workloads.json": functions,
        "b_tuning_records.json": records,
    }.items():
        (theirs / f"{name}.packed").write_bytes(pack(content))
    (theirs / "ansor.json").write_text('{"i": [], "r": []}\n')
    (theirs / "labels.json").write_text('["cat", "dog"]')
    found, num_others = find_databases(theirs)
    names = [tuple(path.name.partition(".")[0] for path in pair) for pair in found]
    assert names == [("a_workloads", "a_tuning_records"), ("b_workloads", "b_tuning_records")]
    assert num_others == 2
    # one pair: the others may be of another device
    assert find_databases(theirs / "a_workloads.json.packed") == (found[:1], 0)
    assert find_databases(theirs / "ansor.json") == ([], 1)
    assert find_databases(theirs / "misspelt.json") == ([], 0)
    (theirs / "drafted.json").write_text("[]")  # drafts of a network: nothing measured them
    assert theirs not in {path.parent for pair in find_databases(folder)[0] for path in pair}


def test_half_a_database_is_paired_with_a_file_that_is_not_there(folder):
    records = folder / "database_tuning_record.json"
    workloads = folder / "database_workload.json"
    records.write_bytes(b"")
    assert find_databases(folder)[0] == [(workloads, records)]
    records.unlink()
    assert find_databases(folder)[0] == [(workloads, records)]
    records.write_text(json.dumps(record([4, 8], -1)) + "\n")
    workloads.unlink()
    assert find_databases(folder)[0] == [(workloads, records)]


def test_instructions_of_earlier_releases_get_their_new_fields(tmp_path):
    earlier = [
        ["GetBlock", [], ["C", "main"], ["b0"]],
        ["Fuse", ["l1", "l2"], [], ["l3"]],
        ["Split", ["l3", "None", 4], [1], ["l4", "l5"]],
        ["ComputeAt", ["b0", "l4"], [1], []],
        ["CacheRead", ["b0"], [0, "local"], ["b1"]],
        ["CacheWrite", ["b0", ["b1"]], [0, "local"], ["b2"]],
    ]
    path = tmp_path / "database_tuning_record.json"
    path.write_text(json.dumps([0, [[earlier, []], [1e-3], TARGET, []]]) + "\n")
    (found,) = read_records(path, Quarantine())
    assert found.trace[0] == [
        ["GetSBlock", [], ["C", "main"], ["b0"]],
        ["Fuse", ["l1", "l2"], [1], ["l3"]],
        ["Split", ["l3", "None", 4], [1, 0], ["l4", "l5"]],
        ["ComputeAt", ["b0", "l4"], [1, -1], []],
        ["CacheRead", ["b0", []], [0, "local"], ["b1"]],
        ["CacheWrite", ["b0", ["b1"]], [0, "local"], ["b2"]],
    ]
