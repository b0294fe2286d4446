"""Ansor's child process: what it may import, and records that become a data root."""

import ast
import importlib
import json
import subprocess
import sys
from unittest.mock import MagicMock

import pytest

from pruner.data.importing import import_logs
from pruner.data.quarantine import Quarantine
from pruner.data.tasks import read_tasks
from pruner.program.te.recorded_task import TaskReader
from tests.paths import REPOSITORY
from tests.tune.run.test_journal import trial, written

CHILD = "pruner.tune.rivals.ansor_child"


class WithoutTypeChecking(ast.NodeTransformer):
    def visit_If(self, node):
        return None if getattr(node.test, "id", "") == "TYPE_CHECKING" else node


def imported_by(path):
    """Modules, and names in them that may be modules; not what is imported for type checkers."""
    for node in ast.walk(WithoutTypeChecking().visit(ast.parse(path.read_text()))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def file_of(name, repository):
    path = repository.joinpath(*name.split("."))
    return next((p for p in (path / "__init__.py", path.with_suffix(".py")) if p.is_file()), None)


def test_children_import_nothing_the_ansor_environment_lacks(repository):
    """Directly or not; operators are found by name, so all their files count."""
    operators = repository / "pruner" / "program" / "dag" / "operators"
    waiting = [
        CHILD,
        *(f"pruner.program.dag.operators.{p.stem}" for p in operators.glob("*.py")),
    ]
    seen, outside = set(), set()
    while waiting:
        name = waiting.pop()
        packages = [name.rsplit(".", n)[0] for n in range(name.count(".") + 1)]
        for module in packages:
            path = file_of(module, repository)
            if module not in seen and path is not None:
                seen.add(module)
                waiting += imported_by(path)
        outside |= {name.split(".")[0]} - {"pruner"}
    assert outside - set(sys.stdlib_module_names) == {"numpy"}
    assert {"pruner.data.quarantine", "pruner.program.dag.operators.windows"} <= seen


@pytest.fixture
def child(monkeypatch):
    """The child process's module with a stand-in for TVM 0.19."""
    for name in ("tvm", "tvm._ffi", "tvm.auto_scheduler", "tvm.te", "tvm.topi"):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    sys.modules.pop(CHILD, None)
    module = importlib.import_module(CHILD)
    for name in ("end_with_parent", "make_model", "make_task", "tempfile"):
        monkeypatch.setattr(module, name, MagicMock())
    yield module
    del sys.modules[CHILD]


@pytest.mark.parametrize(("trials", "asked"), [(3, []), (4, ["round of 1"]), (6, ["3"])])
def test_a_later_start_asks_for_what_the_journal_lacks(child, tmp_path, monkeypatch, trials, asked):
    """Without a log, interrupted in the first batch, and without row 2: its number is spent."""
    whole = ("batch", "builders", "build_timeout_s", "run_timeout_s", "population", "generations")
    spec = {**dict.fromkeys(whole, 1), "seed": 0, "trials": trials, "log": str(tmp_path / "log")}
    seconds = {"build": 2.0, "run": 1.0, "train": 0.5}
    rows = trial(1, [1.0]), trial(3, [3.0], extra={"seconds": seconds})
    path = written(tmp_path / "trials.jsonl", *rows)
    monkeypatch.setattr(sys, "argv", ["", json.dumps({**spec, "journal": str(path)})])
    found, ansor, task = [], child.ansor, child.make_task.return_value
    ansor.TuningOptions.side_effect = lambda num_measure_trials, **_: str(num_measure_trials)
    task.tune.side_effect = lambda options, **_: found.append(options)
    one = ansor.SketchPolicy.return_value.continue_search_one_round
    one.side_effect = lambda number, _: found.append(f"round of {number}")
    child.main()
    assert found == asked
    for call in child.make_model.call_args_list:  # the seconds go on, too
        assert call.args[0].seconds == seconds


@pytest.mark.slow
def test_records_of_ansor_have_all_repeats_after_their_import(tmp_path):
    """What `tune.py policy=ansor_tvm` logs, also in a later start, is a data root."""
    if not (REPOSITORY / ".venv-ansor").is_dir():
        pytest.skip("Ansor is not installed; run: pruner collect setup=true")
    words = [
        "policy=ansor_tvm", "workload=matmul", "workload.m=16", "workload.n=16", "workload.k=16",
        "platform=cpu-sse4", "budget.trials=6", "budget.batch=3", "measure.repeats=5",
        "measure.min_repeat_ms=1", f"outputs={tmp_path}", "run_id=run",
    ]  # fmt: skip
    for given in (words, [f"resume={tmp_path / 'tune' / 'run'}", "budget.trials=7"]):
        done = subprocess.run(
            [sys.executable, "tune.py", *given], capture_output=True, text=True, cwd=REPOSITORY,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    (log,) = tmp_path.rglob("ansor.json")
    with Quarantine() as quarantine:
        found = import_logs(
            log, tmp_path / "root", "cpu-sse4", quarantine, read_task=TaskReader(), compression="gz"
        )
    assert (found.records, found.tasks, found.quarantined) == (7, 1, {})
    (path,) = (tmp_path / "root").rglob("matmul_16_16_16.json.gz")
    (task,) = read_tasks(path, Quarantine())
    trials = [json.loads(line) for line in (log.parent / "trials.jsonl").read_text().splitlines()]
    assert all(len(trial["costs_s"]) == 5 for trial in trials)
    means_s = [sum(trial["costs_s"]) / 5 for trial in trials]
    # Ansor writes six digits
    assert task.latency_s.tolist() == pytest.approx(means_s, rel=1e-5)
