"""``pruner deploy``: kernels of operators with their sources, and what it refuses in one line."""

import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from pruner.cli.deploy import _check_energy
from pruner.errors import PrunerError
from tests.commands import ran
from tests.tune.unhurried import UNHURRIED


@pytest.mark.tvm
@pytest.mark.slow
@pytest.mark.parametrize("compile_only", [False, True])
def test_operators_become_libraries_and_sources(tmp_path, compile_only):
    words = ["workload.m=32", "workload.n=32", "workload.k=32", "budget.trials=2", "verify=false"]
    words += [f"outputs={tmp_path}", "run_id=one", "measure.repeats=1", "measure.min_repeat_ms=1"]
    words += UNHURRIED
    ran("tune.py", *words, f"compile_only={str(compile_only).lower()}")
    folder = tmp_path / "tune" / "one"
    ((name, kernel),) = ran("deploy", f"run={folder}")[0]["kernels"].items()
    ir, assembly = [Path(path).read_text(encoding="utf-8") for path in kernel["sources"]]
    assert "define" in ir
    assert ".text" in assembly

    import numpy as np

    from pruner.tune.run.tuning import tuned_module
    from pruner.tune.tvm_import import load_tvm

    a, b = np.random.default_rng(0).random((2, 32, 32), dtype=np.float32)
    tensor = load_tvm().tvm.runtime.tensor
    c = tensor(np.zeros((32, 32), np.float32))
    tuned_module(folder, name)["main"](tensor(a), tensor(b), c)
    np.testing.assert_allclose(c.numpy(), a @ b, rtol=1e-5)


@pytest.mark.tvm
@pytest.mark.slow
def test_the_kernel_of_a_gpu_comes_with_its_cuda_source(tmp_path):
    """Compiled where no GPU is: the library, and the kernel as CUDA that its launches name."""
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc")
    words = ["workload.m=64", "workload.n=64", "workload.k=64", "budget.trials=2", "verify=false"]
    words += [f"outputs={tmp_path}", "run_id=gpu", "platform=a100", "compile_only=true"]
    words += UNHURRIED
    ran("tune.py", *words)
    ((name, kernel),) = ran("deploy", f"run={tmp_path / 'tune' / 'gpu'}")[0]["kernels"].items()
    (source,) = map(Path, kernel["sources"])
    assert source.name == f"{name}.cu"
    assert "__global__ void" in source.read_text(encoding="utf-8")
    assert "blockIdx.x" in source.read_text(encoding="utf-8")
    assert Path(kernel["library"]).is_file()


def test_what_is_no_run_of_tune_is_told_in_one_line(command, tmp_path):
    err = command("deploy", f"run={tmp_path}").refusal
    assert err.splitlines()[-1].startswith(f"error: run={tmp_path}: no config.yaml there")
    (tmp_path / "config.yaml").write_text("model: pacm\n", encoding="utf-8")
    err = command("deploy", f"run={tmp_path}").refusal
    assert err.splitlines()[-1].endswith("a run of another command, it has no network=")
    (tmp_path / "config.yaml").write_text("network: [", encoding="utf-8")
    assert "no configuration" in command("deploy", f"run={tmp_path}").refusal


def test_energy_without_a_comparison_is_refused_before_any_work():
    for seconds, timed, words in ((2, False, "nothing is timed"), (100, True, "0 to 60")):
        with pytest.raises(PrunerError, match=words):
            _check_energy(OmegaConf.create({"energy": seconds}), timed=timed)
    _check_energy(OmegaConf.create({"energy": 2}), timed=True)
