"""CUDA programs as TVMScript: one that is right, and one with another statement in its place."""

KERNEL = """
@T.prim_func(s_tir=True)
def {name}(a: T.Buffer((1024,), "float32"), b: T.Buffer((1024,), "float32")):
    for block in T.thread_binding(8, thread="blockIdx.x"):
        for lane in T.thread_binding(128, thread="threadIdx.x"):
            with T.sblock("b"):
                i = T.axis.spatial(1024, block * 128 + lane)
                T.reads(a[i])
                T.writes(b[i])
                {statement}

"""


def programs(bad):
    """A file with the kernels `good`, which doubles, and `bad`, which has the statement given."""
    kernels = {"good": "b[i] = a[i] * T.float32(2)", "bad": bad}
    written = [KERNEL.format(name=name, statement=what) for name, what in kernels.items()]
    return "\n".join(["from tvm.script import tirx as T", *written])
