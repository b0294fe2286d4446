"""torch's operators against TVM's unscheduled programs; kernels and runs beside each other."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pruner.errors import DataError, PrunerError
from pruner.program.dag.operators import find_operator
from pruner.program.dag.operators.task_options import tuned_operators
from pruner.tune.compare import compare_runs
from pruner.tune.compare.baselines import Resources, kernel_baselines
from pruner.tune.compare.benchmark import BenchmarkSettings
from pruner.tune.compare.compare_runs import check_equal, check_others, check_run_names
from pruner.tune.compare.runners import torch_operator
from pruner.tune.measure.numerics import inputs, worst_error
from pruner.tune.networks.lowering import NetworkFormat
from pruner.tune.networks.request import REQUEST, NetworkRequest
from pruner.tune.networks.source import NetworkSource
from pruner.tune.run.tuning import kernel_path
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import arguments, from_operator

torch = pytest.importorskip("torch")

IMAGE = {"n": 2, "h": 9, "w": 7, "kh": 3, "kw": 3}
SPECS = {
    "product with a bias": {
        "operator": "matmul", "m": 5, "n": 6, "k": 7, "epilogue": ["bias", "relu"],
    },
    "products": {"operator": "batch_matmul", "batch": 2, "m": 3, "n": 4, "k": 5},
    "products, everything behind": {
        "operator": "batch_matmul", "batch": 2, "m": 3, "n": 4, "k": 5,
        "epilogue": ["bias", "add", "relu"],
    },
    "convolution": {"operator": "conv2d", **IMAGE, "ci": 2, "co": 4, "stride": 2, "padding": 1},
    "sum": {
        "operator": "conv2d", **IMAGE, "ci": 2, "co": 4, "stride": 1, "padding": "SAME",
        "epilogue": ["bias", "add", "relu"],
    },
    "odd sides": {
        "operator": "conv2d", **IMAGE, "kh": 2, "ci": 2, "co": 4, "stride": 1, "padding": "SAME",
    },
    "depthwise": {
        "operator": "depthwise_conv2d", **IMAGE, "c": 3, "stride": 2, "padding": 1,
        "epilogue": ["bias"],
    },
    "groups": {
        "operator": "grouped_conv2d", **IMAGE, "ci": 6, "co": 4, "groups": 2, "stride": 2,
        "padding": 1, "epilogue": ["bias"],
    },
    "maximum": {"operator": "pool", "kind": "max", **IMAGE, "c": 2, "stride": 2, "padding": 1},
    "mean": {"operator": "pool", "kind": "avg", **IMAGE, "c": 2, "stride": 2, "padding": 1},
    "odd maximum": {
        "operator": "pool", "kind": "max", **IMAGE, "kw": 4, "c": 2, "stride": 1, "padding": "SAME",
    },
    "softmax": {"operator": "softmax", "rows": 3, "columns": 7},
    "norm": {"operator": "layer_norm", "rows": 3, "columns": 7},
}  # fmt: skip


@pytest.mark.tvm
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_torch_computes_what_tvm_does(spec):
    workload = from_operator(spec)
    *given, output = arguments(workload.module)
    arrays = inputs(given)
    tvm = load_tvm().tvm
    tensors = [tvm.runtime.tensor(array) for array in (*arrays, np.zeros(*output))]
    tvm.compile(workload.module, target="llvm")["main"](*tensors)
    with torch.inference_mode():
        found = torch_operator(workload.spec)(*map(torch.from_numpy, arrays)).numpy()
    assert worst_error(found, tensors[-1].numpy()) < 1e-5


def test_every_operator_with_options_has_an_equivalent_that_is_compared_above():
    assert all(find_operator(name).torch is not None for name in tuned_operators())
    assert {spec["operator"] for spec in SPECS.values()} == set(tuned_operators())


def test_names_of_kernels_contenders(tmp_path):
    places = {"inputs": tmp_path / "x.npz", "output": ((2,), "float32")}
    places["resources"] = Resources(threads=1)
    (eager,) = kernel_baselines(None, ["eager"], {}, **places)
    assert eager.missing == "torch has no equivalent of this program"
    with pytest.raises(PrunerError, match=r"onnxruntime.*known: eager, compile, autotune"):
        kernel_baselines({}, ["onnxruntime"], {}, **places)


@pytest.mark.slow
@pytest.mark.tvm
def test_kernels_of_two_runs_beside_torch(tmp_path):
    workload = from_operator({"operator": "matmul", "m": 32, "n": 32, "k": 32})
    runs = [tmp_path / name for name in ("one", "two")]
    for run in runs:
        path = kernel_path(run, workload.name)
        path.parent.mkdir(parents=True)
        load_tvm().tvm.compile(workload.module, target="llvm").export_library(str(path))
    how = {"settings": BenchmarkSettings(warm_up_s=0.01, rounds=2, turn_s=0.01)}
    how["resources"], baselines = Resources(threads=1), ["eager", "compile"]
    found = compare_runs.compare_kernels(runs[0], [workload], baselines, runs[1:], **how)
    rows = found[workload.name].by_name
    assert set(rows) == {"eager", "compile", "ours", "two"}
    assert [row["error"] for row in rows.values()] == [None] * 4
    assert all(rows[name]["relative_error"] < 1e-5 for name in ("compile", "ours", "two"))
    assert len(found[workload.name].lines()) == 4
    assert (runs[0] / "kernels_beside.json").is_file()


ASKED = NetworkRequest(source=NetworkSource(name="resnet18"), target={"kind": "llvm"})


def run(folder, request=ASKED):
    folder.mkdir(parents=True)
    request.save(folder / REQUEST)
    return folder


def test_other_runs_of_the_network_are_taken_unless_their_names_are(tmp_path):
    one, two, same = run(tmp_path / "one"), run(tmp_path / "two"), run(tmp_path / "x" / "two")
    check_others(one, [two, run(tmp_path / "three")])
    with pytest.raises(PrunerError, match="is taken"):
        check_others(one, [two, same])
    check_run_names(tmp_path / "a", [tmp_path / "b", tmp_path / "c"])
    for others in (["a"], ["b", "b"], ["eager"], ["ours"]):
        with pytest.raises(DataError, match="is taken"):
            check_run_names(tmp_path / "a", [tmp_path / name for name in others])


def test_other_networks_and_targets_are_refused(tmp_path):
    one = run(tmp_path / "one")
    others = {
        "source": NetworkSource(name="resnet50"),
        "target": {"kind": "cuda"},
        "form": NetworkFormat(precision="float16"),
    }
    for name, value in others.items():
        other = run(tmp_path / name, replace(ASKED, **{name: value}))
        with pytest.raises(PrunerError, match="another network, precision or target"):
            check_others(one, [other])
    check_others(one, [run(tmp_path / "nhwc", replace(ASKED, form=NetworkFormat(layout="NHWC")))])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no network\.json there"):
        check_others(one, [tmp_path / "empty"])


def task(name, fingerprint="1"):
    return SimpleNamespace(name=name, fingerprint=fingerprint)


@pytest.mark.parametrize(
    ("theirs", "told"),
    [([task("x", "2")], "its x is another program"), ([task("z")], "it has none of x, y")],
)
def test_other_programs_are_refused(theirs, told):
    check_equal(Path("b"), [task("x"), task("y")], [task("y"), task("z")])  # y is the same
    with pytest.raises(DataError, match=f"compare=b: {told}"):
        check_equal(Path("b"), [task("x"), task("y")], theirs)
