"""Code and scratch memory of built programs: another reader, arithmetic, and the engine's."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from pruner.errors import PrunerError
from pruner.models.analyzer.estimates import scratch_bytes
from pruner.tune.compiling import code_bytes
from pruner.tune.measure.jobs import build
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.design import design_spaces
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import from_file, operator

pytestmark = pytest.mark.tvm
SCRIPT = """
from tvm.script import tirx as T


@T.prim_func(s_tir=True)
def main(a: T.Buffer((64, 512), "float32"), b: T.Buffer((64, 512), "float32")):
    T.func_attr({{"tirx.noalias": True}})
    for i in T.{kind}(64):
        with T.sblock("row"):
            vi = T.axis.spatial(64, i)
            t = T.sblock_alloc_buffer((512,), "float32")
            for j in range(512):
                with T.sblock("square"):
                    vj = T.axis.spatial(512, j)
                    t[vj] = a[vi, vj] * a[vi, vj]
            for j in range(512):
                with T.sblock("mirror"):
                    vj = T.axis.spatial(512, j)
                    b[vi, vj] = t[511 - vj]
"""


def built(folder, kind, cores):
    path = folder / f"{kind}.py"
    path.write_text(SCRIPT.format(kind=kind))
    module, library = from_file(path)[0].module, folder / f"{kind}{cores}.so"
    target = f'{{"kind": "llvm", "num-cores": {cores}}}'
    text = load_tvm().tvm.ir.save_json(module)
    sizes = build(text, target, str(library), sized=True)
    assert build(text, target, str(library)) is None
    return library, sizes


@pytest.mark.parametrize(
    ("kind", "cores", "scratch"),
    [("serial", 2, 2048), ("parallel", 2, 4096), ("parallel", 1, 2048)],
)
def test_a_buffer_of_512_floats_exists_once_a_thread(tmp_path, kind, cores, scratch):
    library, (code, found) = built(tmp_path, kind, cores)
    assert found == scratch
    assert 0 < code < library.stat().st_size


def test_code_is_the_executable_sections_that_readelf_lists(tmp_path):
    if shutil.which("readelf") is None:
        pytest.skip("no readelf on this machine")
    library, (code, _) = built(tmp_path, "serial", 1)
    text = subprocess.run(
        ["readelf", "-SW", library], capture_output=True, text=True, check=True
    ).stdout
    # [Nr] name type address offset size entry-size flags ...
    rows = re.findall(r"\] \S+ +\S+ +[0-9a-f]+ [0-9a-f]+ ([0-9a-f]+) [0-9a-f]+ +([A-Z]*) ", text)
    assert code == sum(int(size, 16) for size, flags in rows if "X" in flags)
    other = tmp_path / "text"
    other.write_text("no library")
    with pytest.raises(PrunerError, match="no 64-bit ELF library"):
        code_bytes(other)


def test_the_engine_and_tvm_agree_on_scratch_memory(tmp_path, platform):
    """TVM may give a buffer the memory of another, never more than the buffers need."""
    workload = operator("conv2d", n=1, ci=8, h=8, w=8, co=8, kh=3, kw=3, stride=1, padding=1)
    found, quick = [], json.dumps({**json.loads(platform.target_json), "opt-level": 0})
    for design in design_spaces(workload.module, platform.target):
        space = BatchedSpace(design)
        rows = space.sample(3, np.random.default_rng(0))
        ours = np.full(len(rows), np.nan)
        for own, _, nests in space._lowered(rows):
            ours[own] = scratch_bytes(nests, platform.cores)
        for row, schedule in enumerate(space.instantiate(rows)):
            if schedule is not None and np.isfinite(ours[row]):
                text = load_tvm().tvm.ir.save_json(schedule.mod)
                library = str(tmp_path / f"{len(found)}.so")
                found.append((ours[row], build(text, quick, library, sized=True)[1]))
    engine, tvm = np.array(found).T
    assert len(found) >= 8
    assert (tvm > 0).any()
    assert (engine >= tvm).all()
    assert np.mean(engine == tvm) > 0.5
