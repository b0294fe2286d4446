"""On PoCL: programs are right, what fails costs one candidate, kernels run without TVM."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from experiments.common.comparison import started
from pruner.tune.compiling import compiled
from pruner.tune.measure.jobs import Timing
from pruner.tune.measure.measurer import DeviceMeasurer, MeasureSettings
from pruner.tune.measure.numerics import inputs, worst_error
from pruner.tune.opencl.launches import RUNNER, launch_plan
from pruner.tune.opencl.runtime import CHOSEN, load_runtime
from pruner.tune.phases import Phases
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.design import design_spaces
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import arguments, from_file, from_operator
from tests.paths import REPOSITORY
from tests.tune.cuda_programs import DOUBLE, HEAD, UNKNOWN, kernel
from tests.tune.measure.test_measurer import measured
from tests.tune.unhurried import UNHURRIED

pytestmark = pytest.mark.tvm

ENDLESS = """b[i] = a[i]
                while T.bool(True):
                    b[i] = b[i] + T.float32(1)"""


def program(folder, name, statement=DOUBLE, **places):
    path = folder / f"{name}.py"
    path.write_text(HEAD + kernel(statement, **places))
    return from_file(path)[0].module


def settings(**more):
    timing = Timing(repeats=2, min_repeat_ms=1)
    return MeasureSettings(timing=timing, builders=1, run_timeout_s=5.0, **more)


@pytest.fixture(scope="module")
def measurer(pocl):
    with DeviceMeasurer(pocl, settings(), Phases()) as made:
        assert made.exclusive  # its programs run on the cores that the search works on
        yield made


def test_what_fails_costs_one_candidate_and_has_its_kind(measurer, tmp_path):
    good, refused = program(tmp_path, "good"), program(tmp_path, "refused", UNKNOWN)
    large = program(tmp_path, "large", blocks=1, lanes=8192, index="lane % 1024")
    outcomes = measured(measurer, [good, refused, large, good])
    assert [o.error for o in outcomes] == [None, "build_error", "build_error", None]
    assert "no_such_function" in outcomes[1].message
    assert "too many work items a group (8192, at most 4096)" in outcomes[2].message
    assert all(o.latency_s > 0 for o in (outcomes[0], outcomes[3]))


@pytest.mark.slow
def test_a_kernel_that_never_ends_costs_one_candidate(measurer, tmp_path):
    bad = program(tmp_path, "bad", ENDLESS)
    outcomes = measured(measurer, [bad, program(tmp_path, "good")])
    assert [o.error for o in outcomes] in (["run_timeout", None], ["build_timeout", None])


def test_a_device_that_is_lost_is_no_fault_of_its_program(pocl, tmp_path):
    gone = replace(pocl, environments=({CHOSEN: "7"},))
    with DeviceMeasurer(gone, settings(), Phases()) as made:
        (outcome,) = measured(made, [program(tmp_path, "good")])
    assert outcome.error == "run_no_device"
    assert not outcome.concerns_program


SMALL = [
    {"operator": "matmul", "m": 32, "n": 16, "k": 32, "epilogue": ["bias", "relu"]},
]
AVERAGE = {"operator": "pool", "kind": "avg", "n": 1, "c": 8, "h": 8, "w": 8, "kh": 3, "kw": 3}
SMALL += [
    pytest.param(one, marks=pytest.mark.slow)
    for one in (
        AVERAGE | {"stride": 1, "padding": 1}, {"operator": "softmax", "rows": 8, "columns": 32},
    )
]  # fmt: skip


@pytest.mark.parametrize("spec", SMALL, ids=lambda spec: spec["operator"])
def test_a_program_of_every_space_is_right_and_its_launches_run_without_tvm(pocl, tmp_path, spec):
    tvm, module = load_tvm().tvm, from_operator(spec).module
    load_runtime()
    given = inputs(arguments(module))
    wanted = [tvm.runtime.tensor(array) for array in given]
    tvm.compile(module, target="llvm")["main"](*wanted)
    (tmp_path / "run_opencl.py").write_text(RUNNER)
    for number, design in enumerate(design_spaces(module, pocl.target)):
        (row,) = BatchedSpace(design).sample(1, np.random.default_rng(number))
        built = compiled(design.replay(row, 1).mod, pocl.target)
        arrays = [tvm.runtime.tensor(array, tvm.device("opencl", 0)) for array in given]
        built["main"](*arrays)
        assert worst_error(arrays[-1].numpy(), wanted[-1].numpy()) < 1e-5
    plan = launch_plan(built, arguments(module), "a target")  # of the last one
    (tmp_path / "kernel.json").write_text(json.dumps(plan))
    (tmp_path / "kernel.cl").write_text(built.mod.imports[0].inspect_source())
    np.savez(tmp_path / "given.npz", *given)
    script = (
        "import numpy, run_opencl; given = numpy.load('given.npz'); "
        "out = run_opencl.run('kernel.json', *[given[n] for n in given.files[:-1]]); "
        "numpy.save('out.npy', out)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert worst_error(np.load(tmp_path / "out.npy"), wanted[-1].numpy()) < 1e-5


def command(script, *words, code=0, **environment):
    done = subprocess.run(
        started([script, *words], REPOSITORY),
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) if code == 0 else done.stderr.splitlines()[-1]


SIZES = ["workload.m=32", "workload.n=32", "workload.k=32"]
MATMUL = ["platform=opencl-pocl", "workload=matmul", *SIZES]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["pruner_live", "metaschedule", "random"])
def test_the_commands_tune_go_on_and_deploy(pocl, tmp_path, policy):
    words = [*MATMUL, f"policy={policy}", "budget.batch=4", "measure.min_repeat_ms=1", *UNHURRIED]
    found = command("tune.py", *words, "budget.trials=8", f"outputs={tmp_path}")
    assert (found["failed"], found["checked"], found["trials"]) == (0, True, 8)
    again = command("tune.py", f"resume={found['run_dir']}", "budget.trials=12")
    assert again["trials"] == 12
    made = command("deploy", f"run={found['run_dir']}")
    (kernel,) = made["kernels"].values()
    assert [os.path.splitext(one)[1] for one in kernel["sources"]] == [".cl", ".json", ".py"]  # noqa: PTH122


@pytest.mark.slow
def test_what_cannot_work_is_one_line(pocl, tmp_path):
    told = command("tune.py", "platform=opencl-pocl", "network=resnet18", code=2)
    assert "networks are not built for OpenCL" in told
    told = command("tune.py", *MATMUL, "workload.dtype=float16", code=2)
    assert "cl_khr_fp16" in told
    told = command("tune.py", *MATMUL, "measure.device=Radeon", code=2)
    assert "measure.device= one of: 0:" in told
    told = command("tune.py", *MATMUL, code=2, PRUNER_OPENCL_LIBRARY=str(tmp_path / "libOpenCL.so"))
    assert "pip install 'pruner[opencl]'" in told


def test_vectors_whose_lanes_straddle_rows_are_written_out(pocl):
    """TVM by itself stops at them: "(eval_vec_) is false"."""
    shape = {"n": 1, "ci": 128, "h": 7, "w": 7, "co": 128, "kh": 3, "kw": 3, "stride": 1}
    workload = from_operator({"operator": "conv2d", "padding": 1, **shape})
    row = [1, 1, 1, 1, 1, 4, 1, 1, 4, 8, 1, 1, 1, 7, 1, 1, 7, 1, 1, 1, 4, 32, 1, 1, 1, 3, 1, 1, 3]
    design = design_spaces(workload.module, pocl.target)[0]
    schedule = design.replay(np.array([*row, 2, 3, 0]), 1)
    assert "__kernel" in compiled(schedule.mod, pocl.target).mod.imports[0].inspect_source()
