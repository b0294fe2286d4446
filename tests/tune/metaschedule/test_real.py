"""TVM's own builder and runner, real programs: an operator and a network of two layers."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from pruner.tune.metaschedule import search_strategy, warm_worker
from pruner.tune.tvm_import import load_tvm
from tests.paths import REPOSITORY

pytestmark = [pytest.mark.tvm, pytest.mark.slow]


def test_the_example_tunes_an_operator_that_computes_what_it_should(tmp_path):
    words = [sys.executable, "docs/examples/metaschedule_plugin.py", str(tmp_path), "6"]
    how = {"cwd": REPOSITORY, "env": os.environ | {"PYTHONPATH": str(REPOSITORY)}}
    done = subprocess.run(words, **how, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("us, as NumPy computes it")
    assert len((tmp_path / "database_tuning_record.json").read_text().splitlines()) == 6


@pytest.mark.filterwarnings("ignore")  # of the front end and of torch.export
def test_a_network_is_tuned_and_computes_what_torch_does(tmp_path):
    tvm, _, _, ms = load_tvm()
    from tvm import relax
    from tvm.relax.frontend.torch import from_exported_program

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16)).eval()
    x = torch.randn(8, 32)
    with torch.no_grad():
        expected = network(x).numpy()
        exported = from_exported_program(torch.export.export(network, (x,)))
    target = tvm.target.Target({"kind": "llvm", "num-cores": 2})
    with target:
        lowered = relax.get_pipeline("zero")(exported)
    tasks = ms.relax_integration.extract_tasks(lowered, target)
    database = ms.relax_integration.tune_relax(
        lowered, {}, target, str(tmp_path), 3 * len(tasks), num_trials_per_iter=3,
        builder=ms.builder.LocalBuilder(initializer=warm_worker),
        runner=ms.runner.LocalRunner(initializer=warm_worker),
        strategy=search_strategy(seed=0), cost_model="none", seed=0,
    )  # fmt: skip
    runs = [record.run_secs[0] for record in database.get_all_tuning_records()]
    assert sum(float(seconds) < 1 for seconds in runs) >= 2 * len(tasks)
    assert len({record.workload for record in database.get_all_tuning_records()}) == len(tasks)
    with target, database, tvm.transform.PassContext(opt_level=3):
        tuned = relax.transform.MetaScheduleApplyDatabase(enable_warning=True)(lowered)
    scheduled = [func for _, func in tuned.functions_items() if "tirx.is_scheduled" in func.attrs]
    assert len(scheduled) == len(tasks)
    executable = ms.relax_integration.compile_relax(database, exported, target, None)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    (found,) = machine["main"](tvm.runtime.tensor(x.numpy()))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)
