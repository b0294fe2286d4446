"""TVM has the instructions of tensor cores wherever a GPU's programs are made."""

import subprocess
import sys

import pytest

from tests.paths import REPOSITORY

pytestmark = pytest.mark.tvm

HALF_MATMUL = """
from pruner.tune.workloads import from_operator
spec = {"operator": "matmul", "m": 64, "n": 64, "k": 64, "dtype": "float16"}
module = from_operator(spec).module
"""


def run(code, *, torch=False):
    """The words that a process prints; without torch it starts in half of the time."""
    hidden = "" if torch else "import sys\nsys.modules['torch'] = None\n"
    words = [sys.executable, "-c", hidden + code]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


@pytest.mark.slow
def test_the_plugin_leaves_tvm_complete_for_its_user():
    """As docs/metaschedule-plugin.md has it: TVM makes the context, and its rules, by itself."""
    told = run(
        "import pruner.tune.metaschedule.strategy\n"
        + HALF_MATMUL
        + "from tvm.s_tir import meta_schedule as ms\n"
        "import tvm\n"
        "target = tvm.target.Target('nvidia/nvidia-a100')\n"
        "context = ms.TuneContext(mod=module, target=target, space_generator='post-order-apply')\n"
        "print(len(context.generate_design_space()) > 0)\n",
        torch=True,
    )
    assert told == ["True"]


def test_what_a_command_for_a_cpu_leaves_out_is_there_before_a_gpu_needs_it():
    told = run(
        "from pruner.tune.tvm_import import cpus_only, load_intrinsics, load_tvm\n"
        "cpus_only()\n"
        "tvm = load_tvm().tvm\n"
        "def known():\n"
        "    name = 'tirx.index_map_m16n8k8.matrixC'\n"
        "    wmma = tvm.s_tir.TensorIntrin.get('wmma_sync_16x16x16_f16f16f32', True)\n"
        "    print(tvm.get_global_func(name, True) is not None and wmma is not None)\n"
        "known()\n"
        "load_intrinsics(tvm.target.Target('llvm'))\n"
        "known()\n"
        "load_intrinsics(tvm.target.Target('nvidia/nvidia-a100'))\n"
        "known()\n"
        "load_intrinsics(tvm.target.Target('nvidia/nvidia-a100'))\n"
    )
    assert told == ["False", "False", "True"]


def test_workers_of_a_fresh_process_have_what_compiling_for_tensor_cores_takes():
    told = run(
        "from pruner.processes import Worker, preload\n"
        "from pruner.tune.measure.jobs import PRELOADED\n"
        "preload(*PRELOADED)\n"
        "worker = Worker('tests.worker_jobs', timeout_s=60, memory_bytes=8 << 30)\n"
        "print(worker.call('tvm_has', 'tirx.index_map_m16n8k8.matrixC').value)\n"
        "worker.stop()\n"
    )
    assert told == ["True"]
