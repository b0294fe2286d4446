"""Functions of other releases of TVM, against those that this release makes."""

import gzip
import json
import lzma
from errno import ENOSPC

import numpy as np
import pytest
import torch

from pruner.data.metaschedule import _present, find_databases, read_workloads
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.data.stream import read_lines
from pruner.errors import DataError, UnsupportedProgram
from pruner.features.batch import featurize, featurize_nests
from pruner.models.programs.dataset import load_programs
from pruner.program.tir.saved import SpaceFolder
from pruner.tune.pools.importing import import_databases
from pruner.tune.pools.older_functions import _Graph, load_module
from pruner.tune.spaces.lowered import lowered
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import normalised, operator
from tests.paths import REPOSITORY
from tests.tune.pools.old_graphs import Graph, matmul, packed

pytestmark = pytest.mark.tvm


def load(saved):
    return load_module(json.dumps(saved).encode())


def made_here(m, n, k):
    return operator("matmul", m=m, n=n, k=k).module


@pytest.mark.parametrize("ffi", [False, True], ids=["0.8 to 0.20", "0.21 and later"])
def test_a_matmul_is_the_same_function_and_computes_the_same(ffi):
    tvm, found = load_tvm().tvm, normalised(load(matmul(4, 6, 8, ffi=ffi)))
    assert load_tvm().ffi.structural_equal(found, made_here(4, 6, 8))
    a, b = np.random.default_rng(0).random((2, 8, 8), np.float32)
    a, b = a[:4], b[:, :6].copy()
    arrays = [tvm.runtime.tensor(x) for x in (a, b, np.zeros((4, 6), np.float32))]
    tvm.compile(found, target="llvm")["main"](*arrays)
    np.testing.assert_allclose(arrays[2].numpy(), a @ b, rtol=1e-6)


def binary(kind, dtype="int32"):
    return lambda g: g.add(kind, a=g.number(7), b=g.number(3), dtype=dtype)


def call(name, *numbers, op="Op"):
    def make(g):
        g.nodes.append({"type_key": op, "repr_str": name})
        return g.add(
            "tir.Call", op=len(g.nodes) - 1, args=g.array(*map(g.number, numbers)), dtype="int32"
        )

    return make


def select(g):
    truth, yes, no = g.number(1, "uint1"), g.number(7), g.number(3)
    return g.add("tir.Select", condition=truth, true_value=yes, false_value=no, dtype="int32")


EXPRESSIONS = {
    "Sub": (binary("tir.Sub"), lambda tvm, a, b: tvm.tirx.Sub(a, b)),
    "FloorDiv": (binary("tir.FloorDiv"), lambda tvm, a, b: tvm.tirx.FloorDiv(a, b)),
    "Max": (binary("tir.Max"), lambda tvm, a, b: tvm.tirx.Max(a, b)),
    "LE": (binary("tir.LE", "bool"), lambda tvm, a, b: tvm.tirx.LE(a, b)),
    "bitwise_and": (call("tir.bitwise_and", 7, 3), lambda t, a, b: t.ir.prim.expr.BitwiseAnd(a, b)),
    "shift_left": (call("tir.shift_left", 7, 3), lambda tvm, a, b: tvm.ir.prim.expr.LShift(a, b)),
    "sqrt": (call("tir.sqrt", 7), lambda t, a, _: t.ir.Call("tirx.sqrt", [a], ret_ty="int32")),
    "if_then_else": (
        call("tir.if_then_else", 7, 3, 3),
        lambda tvm, a, b: tvm.ir.Call("prim.if_then_else", [a, b, b], ret_ty="int32"),
    ),
    "Cast": (
        lambda g: g.add("tir.Cast", dtype="float16", value=g.number(7)),
        lambda tvm, a, _: tvm.tirx.Cast("float16", a),
    ),
    "Select": (select, lambda t, a, b: t.tirx.Select(t.tirx.IntImm("bool", 1), a, b)),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions_are_those_that_tvm_makes(name):
    old, new = EXPRESSIONS[name]
    g = Graph()
    root = old(g)
    tvm = load_tvm().tvm
    a, b = (tvm.tirx.IntImm("int32", value) for value in (7, 3))
    found = _Graph(g.saved(root)).build(root)
    assert load_tvm().ffi.structural_equal(found, new(tvm, a, b))


def shared_memory(g):
    first = g.buffer("A", 4)
    pointer = int(g.nodes[first]["attrs"]["data"])
    return g.array(first, g.buffer("B", 2, 2, pointer=pointer))


REFUSED = {
    "it uses tir.ProducerLoad": lambda g: g.add("tir.ProducerLoad", producer=0),
    "it uses predicate of tir.BufferLoad": lambda g: g.load(
        g.buffer("A", 4), g.number(0), predicate=g.number(1, "bool")
    ),
    "it calls tir.call_llvm_pure_intrin": call("tir.call_llvm_pure_intrin", 300, 1, 7),
    "it calls tir.of_the_future": call("tir.of_the_future", 7),
    "it calls another function": call("", 7, op="GlobalVar"),
    "it uses a pointer outside of its buffers": lambda g: g.var("A", "handle"),
    "two of its buffers share their memory": shared_memory,
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_has_no_counterpart_is_refused_by_name(why):
    g = Graph()
    body = g.add("tir.Evaluate", value=REFUSED[why](g))
    with pytest.raises(UnsupportedProgram, match=why):
        load(g.saved(g.module([], g.block("root", body=body))))


@pytest.mark.parametrize("damage", ["body", "nodes", "cycle"])
def test_damaged_graphs_are_refused(damage):
    saved = matmul(4, 4, 4)
    function = next(n for n in saved["nodes"] if n["type_key"] == "tir.PrimFunc")
    if damage == "nodes":
        saved["nodes"] = saved["nodes"][:40]
    elif damage == "body":
        del function["attrs"]["body"]
    else:
        function["attrs"]["body"] = str(saved["nodes"].index(function))
    with pytest.raises(UnsupportedProgram, match="function-not-read"):
        load(saved)


OLD_TRACE = [
    ["GetBlock", [], ["C", "main"], ["b0"]],
    ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]],
    ["SamplePerfectTile", ["l1"], [2, 16], ["v4", "v5"]],
    ["Split", ["l1", "v4", "v5"], [1], ["l6", "l7"]],
    ["CacheWrite", ["b0"], [0, "global"], ["b8"]],
    ["ReverseComputeAt", ["b8", "l7"], [1], []],
    ["EnterPostproc", [], [], []],
    ["GetChildBlocks", ["b0"], [], []],
]
TARGET = {"kind": "llvm", "mcpu": "core-avx2", "num-cores": 4}
TILES = ([4, 2], [1, 8], [2, 4])
POOL = 16  # line of resnet34's average pool in the database of 2023


def database(folder, first_line, trace, pack=bytes):
    folder.mkdir()
    suffix = {bytes: "", gzip.compress: ".gz", lzma.compress: ".xz"}[pack]
    costs = zip(TILES, (1e-3, 2e-3, 3e-3), strict=True)
    lines = [[0, [[trace, [[2, tile]]], [cost_s], TARGET, []]] for tile, cost_s in costs]
    records = "".join(json.dumps(line) + "\n" for line in lines).encode()
    (folder / "database_workload.json").write_text(json.dumps(first_line) + "\n")
    (folder / f"database_tuning_record.json{suffix}").write_bytes(pack(records))
    return folder


def imported(logs, out):
    pairs = find_databases(logs)[0]
    return import_databases(pairs, out, "cpu-sse4", Quarantine(), compression="gz")


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_an_old_database_gives_the_features_of_the_same_records_of_today(tmp_path, pack):
    today = [[{"GetBlock": "GetSBlock"}.get(kind, kind), *rest] for kind, *rest in OLD_TRACE[:-1]]
    today[3][2], today[4][1], today[5][2] = [1, 0], ["b0", []], [1, -1]
    saved = json.loads(load_tvm().tvm.ir.save_json(made_here(8, 6, 4)))
    theirs = database(tmp_path / "old", ["17", packed(matmul(8, 6, 4))], OLD_TRACE, pack)
    ours = database(tmp_path / "new", ["18", packed(saved)], today)
    found = [imported(logs, tmp_path / f"{logs.name}-root") for logs in (theirs, ours)]
    assert [(one.records, one.failed, one.quarantined) for one in found] == [(3, 0, {})] * 2
    roots = [RecordRoot(tmp_path / f"{name}-root") for name in ("old", "new")]
    old, new = (load_programs(root, ["cpu-sse4"]).store for root in roots)
    np.testing.assert_array_equal(old.latency_s.numpy(), new.latency_s.numpy())
    rows = torch.arange(len(TILES))
    features = [store.programs(rows).statement.numpy() for store in (old, new)]
    np.testing.assert_array_equal(*features)
    assert features[0].any()
    # both at once: the same programs of one function, whatever hash a release gave it
    twice = imported(tmp_path, tmp_path / "root")
    assert (twice.records, twice.tasks, twice.quarantined) == (3, 1, {"duplicate": 3})
    assert [path.name for path in twice.out.iterdir()] == ["tir_18.json.gz"]


def test_a_disk_that_is_full_ends_the_import(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr("pruner.tune.pools.importing.save_space", full)
    logs = database(tmp_path / "old", ["17", packed(matmul(8, 6, 4))], OLD_TRACE)
    with pytest.raises(OSError, match="No space left"):
        imported(logs, tmp_path / "out")
    assert not list((tmp_path / "out/measure_records").iterdir())


def test_a_function_that_is_not_read_is_named_with_its_release(tmp_path):
    saved = matmul(8, 6, 4)
    saved["nodes"].append({"type_key": "tir.Any"})
    body = next(n for n in saved["nodes"] if n["type_key"] == "tir.PrimFunc")
    body["attrs"]["body"] = str(len(saved["nodes"]) - 1)
    logs = database(tmp_path / "old", ["17", packed(saved)], OLD_TRACE)
    with pytest.raises(DataError, match=r"3 x .*of TVM 0\.13\.dev0 not read: .*tir\.Any"):
        imported(logs, tmp_path / "out")


@pytest.mark.slow
def test_records_of_2023_have_the_features_of_the_schedules_that_were_measured(tmp_path):
    """Against their own postprocessing, which TVM replays: two records of each of 19 tasks."""
    database = REPOSITORY.parent / "shared/data/metaschedule-a100/resnet34"
    if not database.is_dir():
        pytest.skip(f"{database} is not there")
    functions = database / "database_workload.json.gz"
    picked = {}
    for _, line, _ in read_lines(database / "database_tuning_record.json.gz", Quarantine()):
        record = json.loads(line)
        if len(picked.setdefault(record[0], [])) < 2:
            picked[record[0]].append(record)
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / functions.name).write_bytes(functions.read_bytes())
    lines = [json.dumps(record) + "\n" for found in picked.values() for record in found]
    (tmp_path / "db/database_tuning_record.json").write_text("".join(lines))
    assert imported(tmp_path / "db", tmp_path / "out").records == len(lines) == 40
    spaces = SpaceFolder(tmp_path / "out/design_spaces")
    s_tir = load_tvm().s_tir
    for number, stored in read_workloads(functions, Quarantine()).items():
        path = tmp_path / f"out/measure_records/cpu-sse4/tir_{stored.hash}.json.gz"
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        steps = [json.loads(line)["i"][1][1] for line in lines]
        ours = featurize(spaces, steps)
        assert ours.valid.all()
        if number == POOL:  # TVM's replay leaves a guard 0 * 64 + thread < 1, which is read as open
            continue
        for row, (_, ((instructions, decisions), *_)) in enumerate(picked[number]):
            schedule = s_tir.Schedule(normalised(load_module(stored.module)), debug_mask=0)
            trace = [[_present(*step) for step in instructions], decisions]
            s_tir.Trace.apply_json_to_schedule(trace, schedule)
            nests = [(np.array([0]), lowered(schedule.mod))]
            theirs = featurize_nests(nests, 1, workload=ours.workload, failures={})
            rows = slice(*ours.row_start[row : row + 2])
            np.testing.assert_array_equal(theirs.statement, ours.statement[rows])
