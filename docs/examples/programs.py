"""Programs of one's own, as TVMScript: ``python tune.py workload=file workload.path=FILE``.

Every function of the file is a task; ``workload.function=product`` takes one. Arguments are buffers
of fixed shapes, outputs last, and the blocks say which axes are spatial and which are summed over.
"""

from tvm.script import tirx as T


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


@T.prim_func(s_tir=True)
def product_transposed(
    a: T.Buffer((128, 128), "float32"),
    b: T.Buffer((128, 128), "float32"),
    c: T.Buffer((128, 128), "float32"),
):
    for i, j, k in T.grid(128, 128, 128):
        with T.sblock("product_transposed"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                c[vi, vj] = T.float32(0)
            c[vi, vj] = c[vi, vj] + a[vi, vk] * b[vj, vk]
