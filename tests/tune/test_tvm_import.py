"""TVM has the instructions of tensor cores wherever a GPU's programs are made."""

import os
import subprocess
import sys

import pytest

from pruner.tune.tvm_import import read_kept
from tests.paths import REPOSITORY

pytestmark = pytest.mark.tvm

HALF_MATMUL = """
from pruner.tune.workloads import from_operator
spec = {"operator": "matmul", "m": 64, "n": 64, "k": 64, "dtype": "float16"}
module = from_operator(spec).module
"""


def run(code, cache, *, torch=False):
    """What a user's process prints with this cache; without torch it starts in half of the time."""
    hidden = "" if torch else "import sys\nsys.modules['torch'] = None\n"
    words = [sys.executable, "-c", hidden + code]
    environment = {name: value for name, value in os.environ.items() if name[:7] != "TVM_FFI"}
    environment["XDG_CACHE_HOME"] = str(cache)
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, cwd=REPOSITORY, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.mark.slow
def test_the_plugin_leaves_tvm_complete_for_its_user(cache):
    """As docs/metaschedule-plugin.md has it: TVM makes the context, and its rules, by itself."""
    told = run(
        "import pruner.tune.metaschedule.plugin\n"
        + HALF_MATMUL
        + "from tvm.s_tir import meta_schedule as ms\n"
        "import tvm\n"
        "target = tvm.target.Target('nvidia/nvidia-a100')\n"
        "context = ms.TuneContext(mod=module, target=target, space_generator='post-order-apply')\n"
        "print(len(context.generate_design_space()) > 0)\n",
        cache,
        torch=True,
    )
    assert told == ["True"]


OF_A_CPU = """
import torch
calls = []
torch.cuda.is_available = lambda: calls.append(1) or False
from pruner.tune.tvm_import import cpus_only, load_intrinsics, load_tvm
cpus_only()
tvm = load_tvm().tvm
print(not calls)
def known():
    name = 'tirx.index_map_m16n8k8.matrixC'
    wmma = tvm.s_tir.TensorIntrin.get('wmma_sync_16x16x16_f16f16f32', True)
    print(tvm.get_global_func(name, True) is not None and wmma is not None)
known()
load_intrinsics(tvm.target.Target('llvm'))
known()
load_intrinsics(tvm.target.Target('nvidia/nvidia-a100'))
known()
load_intrinsics(tvm.target.Target('nvidia/nvidia-a100'))
"""


@pytest.fixture(scope="module")
def of_a_cpu(cache):
    """What a process with torch prints that imports TVM for a CPU and then needs a GPU's part."""
    told = run(OF_A_CPU, cache, torch=True)
    return told[0], told[1:]


def test_the_import_leaves_the_device_alone_and_has_a_gpus_part_when_it_is_needed(of_a_cpu):
    """No process forked from one that asked CUDA for a device can use it (tvm_ffi asks torch)."""
    assert of_a_cpu[0] == "True"
    assert of_a_cpu[1] == ["False", "False", "True"]


def kept_in(cache):
    (path,) = (cache / "pruner" / "intrinsics").iterdir()
    return path


def test_what_later_processes_read_is_what_tvm_parses(of_a_cpu, cache, tvm, tmp_path):
    equal, path = tvm.ffi.structural_equal, kept_in(cache)
    kept = read_kept(path)
    assert len({name for name, *_ in kept}) == len(kept) > 80
    for name, computation, call in kept:
        here = tvm.s_tir.TensorIntrin.get(name)
        assert equal(here.desc, computation), name
        assert equal(here.impl, call), name
    damaged = tmp_path / path.name
    damaged.write_bytes(path.read_bytes().replace(b"wmma", b"wwma", 1))
    assert read_kept(damaged) is None
    assert read_kept(tmp_path / "absent") is None


def test_torch_is_hidden_from_the_importing_thread_alone(cache):
    told = run(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from pruner.tune.tvm_import import without_torch\n"
        "def found():\n"
        "    try:\n"
        "        import torch.version\n"
        "    except ModuleNotFoundError as error:\n"
        "        return error.name\n"
        "    return 'found'\n"
        "with without_torch(), ThreadPoolExecutor() as others:\n"
        "    print(found(), others.submit(found).result())\n"
        "print(found())\n",
        cache,
        torch=True,
    )
    assert told == ["torch", "found", "found"]


def test_workers_of_a_fresh_process_have_what_compiling_for_tensor_cores_takes(of_a_cpu, cache):
    """From the cache that an earlier process left."""
    before = kept_in(cache).stat().st_mtime_ns
    told = run(
        "from pruner.processes import Worker, preload\n"
        "from pruner.tune.measure.jobs import PRELOADED\n"
        "preload(*PRELOADED)\n"
        "worker = Worker('tests.worker_jobs', timeout_s=60, memory_bytes=8 << 30)\n"
        "print(worker.call('tvm_has', 'tirx.index_map_m16n8k8.matrixC').value)\n"
        "print(worker.call('tvm_multiplies', 'wmma_sync_16x16x16_f16f16f32').value)\n"
        "worker.stop()\n",
        cache,
    )
    assert told == ["True", "True"]
    assert kept_in(cache).stat().st_mtime_ns == before
