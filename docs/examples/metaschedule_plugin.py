"""TVM's own tuning of one operator, with our search in it: ``python metaschedule_plugin.py``.

Builder, runner, scheduler and database are TVM's; the programs come from our draft-then-verify.
"""

import sys

import numpy as np
import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.script import tirx as T

from pruner.tune.metaschedule import search_strategy, warm_worker


@T.prim_func(s_tir=True)
def product(
    a: T.Buffer((128, 128), "float32"),
    b: T.Buffer((128, 128), "float32"),
    c: T.Buffer((128, 128), "float32"),
):
    for i, j, k in T.grid(128, 128, 128):
        with T.sblock("product"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                c[vi, vj] = T.float32(0)
            c[vi, vj] = c[vi, vj] + a[vi, vk] * b[vk, vj]


def main(folder="outputs/metaschedule", trials=32):
    processor = tvm.target.codegen.llvm_get_system_cpu()
    target = tvm.target.Target({"kind": "llvm", "mcpu": processor, "num-cores": 2})
    database = ms.tune_tir(
        product,
        target,
        folder,
        max_trials_global=trials,
        num_trials_per_iter=16,
        builder=ms.builder.LocalBuilder(initializer=warm_worker),
        runner=ms.runner.LocalRunner(initializer=warm_worker),
        strategy=search_strategy(),
        cost_model="none",
    )
    kernel = tvm.compile(ms.tir_integration.compile_tir(database, product, target).mod, target)
    a, b = np.random.default_rng(0).random((2, 128, 128), dtype=np.float32)
    c = tvm.runtime.tensor(np.zeros((128, 128), "float32"))
    kernel["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(b), c)
    np.testing.assert_allclose(c.numpy(), a @ b, rtol=1e-4)
    best = min(float(record.run_secs[0]) for record in database.get_all_tuning_records())
    print(f"{1e6 * best:.1f} us, as NumPy computes it")


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
