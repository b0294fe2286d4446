"""The table of `benchmarks/coverage.py`: its counts by hand, its resumption, nvcc by a fake."""

import importlib
import importlib.util
import json

import pytest

from pruner.files import read_table, write_json
from pruner.tune.networks.coverage import ReplayShare
from pruner.tune.networks.lowering import NetworkFormat
from tests.paths import REPOSITORY

pytestmark = pytest.mark.tvm


@pytest.fixture
def script(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")
    path = REPOSITORY / "benchmarks" / "coverage.py"
    spec = importlib.util.spec_from_file_location("coverage_of_networks", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "TABLE", tmp_path / "results" / "coverage.csv")
    return module


@pytest.fixture
def cells(script):
    return importlib.import_module("network_cells")


@pytest.fixture
def nvcc(monkeypatch):
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")
    return importlib.import_module("nvcc")


def test_a_task_counts_where_all_its_spaces_are_batched(script, cells, tmp_path):
    tasks = [("a", 60.0, 2, []), ("b", 40.0, 2, ["gather: a table"]), ("c", 0.0, 0, [])]
    for key, _, spaces, refused in tasks:
        cells.TaskCell(spaces=spaces, refused=refused).save(tmp_path / f"{key}.json")
    rows = [{"key": key, "weight": 1, "flops": flops} for key, flops, *_ in tasks]
    found = script.counted(rows, tmp_path)
    assert (found["tasks_tried"], found["tasks_batched"]) == (3, 1)
    assert (found["spaces"], found["spaces_batched"]) == (4, 3)
    assert found["flops_batched"] == "0.6000"  # 60 of 100
    assert found["not_batched"] == "1 gather"


def test_the_share_that_tvm_replays_is_of_the_tasks_whose_spaces_were_opened():
    found = ReplayShare.of(
        [("a", 60.0, 0), ("b", 30.0, 2), ("c", 10.0, 1), ("never begun", 99.0, None)]
    )
    assert (found.tasks, found.share) == (["b", "c"], 0.4)  # 40 of 100
    assert str(found) == (
        "40.0% of the arithmetic is in 2 tasks with at least one design space that only TVM can "
        "replay: b, c"
    )
    whole = ReplayShare.of([("a", 60.0, 0), ("a reshape", 0.0, 1)])
    assert (whole.tasks, whole.share) == (["a reshape"], 0.0)
    alone = ReplayShare.of([("argmax", 0.0, 3)])
    assert (alone.tasks, alone.share) == (["argmax"], None)
    assert str(alone).startswith("no arithmetic is in a task with at least one design space")
    none = ReplayShare.of([("a", 60.0, None)])
    assert (none.tasks, none.share, str(none)) == ([], None, "")


def cell_of(script, network="resnet18", target="a100"):
    return script.Cell(network, target, NetworkFormat())


def listed_here(script, folder, cell, tasks):
    """As if the command had listed tasks (key, weight, flops) of a network."""
    cells = importlib.import_module("network_cells")
    where = cell.listing(folder)
    file = cells.tasks_file(where)
    file.parent.mkdir(parents=True)
    rows = [dict(zip(("key", "weight", "flops"), task, strict=True)) for task in tasks]
    write_json(file, rows)
    write_json(where / cells.LISTED, {"wall_s": 12.4, "cpu_s": 9.0, "peak_mib": 700.2})


def test_a_row_counts_the_programs_of_its_tasks(script, cells, tmp_path):
    cell = cell_of(script)
    listed_here(script, tmp_path, cell, [("a1", 2, 10.0), ("b2", 1, 5.0), ("c3", 1, 0.0)])
    folder = tmp_path / "a100"
    folder.mkdir()
    programs = [
        cells.Program(compiled=True),
        cells.Program(refused_by="nvcc", reason="too much shared data"),
    ]
    cells.TaskCell(spaces=3, refused=[], programs=programs).save(folder / "a1.json")
    cells.TaskCell(spaces=1, refused=["gather: x"], none="view").save(folder / "b2.json")
    row = script.row(cell, tmp_path)
    assert (row["list_wall_s"], row["list_cpu_s"], row["list_peak_mib"]) == ("12", "9", "700")
    assert (row["tasks"], row["tasks_tried"], row["tasks_batched"], row["views"]) == (3, 2, 1, 1)
    assert (row["spaces"], row["spaces_batched"], row["flops_batched"]) == (4, 3, "0.8000")
    assert (row["programs"], row["compiled"], row["refused_nvcc"]) == (2, 1, 1)
    assert row["refused_tvm"] == row["tasks_without_program"] == 0
    assert (row["not_batched"], row["reasons"]) == ("1 gather", "1 nvcc: too much shared data")


def test_a_task_of_two_networks_counts_once_in_the_row_of_all(script, cells, tmp_path):
    first, second = cell_of(script), cell_of(script, "resnet50")
    listed_here(script, tmp_path, first, [("a1", 2, 10.0)])
    listed_here(script, tmp_path, second, [("a1", 1, 10.0), ("b2", 1, 5.0)])
    (tmp_path / "a100").mkdir()
    for key in ("a1", "b2"):
        cells.TaskCell(spaces=2, refused=[]).save(tmp_path / "a100" / f"{key}.json")
    found = script.every([first, second], tmp_path)
    assert (found["network"], found["tasks_tried"], found["spaces"]) == ("all", 2, 4)


def test_rows_of_others_stay_and_what_was_not_run_is_empty(script, tmp_path):
    cell = cell_of(script)
    listed_here(script, tmp_path, cell, [])
    script.keep(cell, tmp_path)
    script.keep(cell_of(script, target="h100"), tmp_path / "elsewhere")
    rows = {(row["network"], row["target"]): row for row in read_table(script.TABLE)}
    assert len(rows) == 2 * (len(script.NETWORKS) + 1)  # every network and all of them
    assert rows["resnet18", "a100"]["list_wall_s"] == "12"
    assert rows["resnet18", "h100"]["tasks"] == rows["gpt2", "a100"]["tasks"] == ""


def test_a_listing_that_failed_says_why(script, cells, tmp_path):
    cell = cell_of(script)
    where = cell.listing(tmp_path)
    where.mkdir(parents=True)
    failed = {"wall_s": 1.0, "cpu_s": 1.0, "peak_mib": 1.0, "error": "error: no such network"}
    write_json(where / cells.LISTED, failed)
    assert script.row(cell, tmp_path)["reasons"] == "not listed: error: no such network"


KERNEL = 'extern "C" __global__ void main_kernel(float* x) {{ x[0] = {value}; }}\n'


def test_programs_in_one_file_have_names_of_their_own(nvcc):
    text = nvcc.together(
        {
            "p1": "#include <h>\n" + KERNEL.format(value=1),
            "p2": "#include <h>\n" + KERNEL.format(value=2),
        }
    )
    assert text.count("#include <h>") == 1
    assert "p1_kernel(" in text
    assert "p2_kernel(" in text
    assert "main_kernel" not in text


def test_only_the_programs_at_fault_are_refused(nvcc, monkeypatch):
    files = []

    def fake(text, arch):
        files.append(text.count("__global__"))
        return "error: bad" if "bad" in text else None

    monkeypatch.setattr(nvcc, "_compile", fake)
    sources = {f"p{n}": KERNEL.format(value="bad" if n == 5 else n) for n in range(8)}
    sources["q"] = "another head\n" + KERNEL.format(value=0)
    verdicts = [one for some in nvcc.compiled(sources, "sm_80") for one in some.items()]
    assert [name for name, reason in verdicts if reason is not None] == ["p5"]
    assert {name for name, _ in verdicts} == set(sources)
    assert files == [8, 4, 4, 2, 1, 1, 2, 1]


def test_what_nvcc_said_is_kept(cells, tmp_path):
    path = tmp_path / "ab.json"
    cells.TaskCell(spaces=1, refused=[], programs=[cells.Program(), cells.Program()]).save(path)
    for number in range(2):
        cells.source_file(path, number).write_text(KERNEL.format(value=number))
    assert set(cells.pending(tmp_path, ["ab", "ab", "none"])) == {"pab_0", "pab_1"}
    cells.settle(tmp_path, {"pab_1": "error: no", "pab_0": None})
    assert cells.pending(tmp_path, ["ab"]) == {}
    kept = json.loads(path.read_text())["programs"]
    assert [row["compiled"] for row in kept] == [True, False]
    assert [row["refused_by"] for row in kept] == [None, "nvcc"]
    assert [cells.source_file(path, n).is_file() for n in range(2)] == [False, True]
