"""The counts of the coverage table, by hand."""

import importlib.util

import pytest

from tests.places import REPOSITORY

pytestmark = pytest.mark.tvm
pytest.importorskip("tvm", reason="TVM 0.27 is not installed")


def coverage():
    path = REPOSITORY / "benchmarks" / "coverage.py"
    spec = importlib.util.spec_from_file_location("coverage_of_networks", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def task(weight, flops):
    from pruner.tune.networks.tasks import NetworkTask

    return NetworkTask(name="t", key="k", module=None, weight=weight, flops=flops)


def test_a_task_counts_where_all_its_spaces_are_batched():
    found = coverage().Coverage()
    found.add(task(2, 30.0), [None, None])
    found.add(task(1, 40.0), [None, "gather"])
    row = found.row("net", "a100")
    assert (row["tasks"], row["tasks_batched"]) == (2, 1)
    assert (row["spaces"], row["spaces_batched"]) == (4, 3)
    assert row["flops_batched"] == "0.6000"  # 60 of 100
    assert row["reasons"] == "gather 1"


def test_rows_of_other_networks_and_targets_stay(tmp_path, monkeypatch):
    module = coverage()
    monkeypatch.setattr(module, "TABLE", tmp_path / "results" / "coverage.csv")
    row = module.Coverage().row
    module.keep([row("resnet50", "a100")])
    module.keep([row("resnet18", "h100"), row("resnet18", "a100")])
    kept = module.keep([row("resnet50", "a100")])
    places = [(r["network"], r["target"]) for r in kept]
    assert places == [("resnet18", "a100"), ("resnet18", "h100"), ("resnet50", "a100")]
