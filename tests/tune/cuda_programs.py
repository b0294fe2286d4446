"""Programs of a GPU as TVMScript: one that is right, and others with another statement."""

HEAD = "from tvm.script import tirx as T\n"
KERNEL = """
@T.prim_func(s_tir=True)
def {name}(a: T.Buffer(({extent},), "float32"), b: T.Buffer(({extent},), "float32")):
    for block in T.thread_binding({blocks}, thread="blockIdx.x"):
        for lane in T.thread_binding({lanes}, thread="threadIdx.x"):
            with T.sblock("b"):
                i = T.axis.spatial({extent}, {index})
                T.reads(a[i])
                T.writes(b[i])
                {statement}

"""
PLACES = {"extent": 1024, "blocks": 8, "lanes": 128, "index": "block * 128 + lane"}
DOUBLE = "b[i] = a[i] * T.float32(2)"
UNKNOWN = 'b[i] = T.call_extern("float32", "no_such_function", a[i])'


def kernel(statement, name="main", **places):
    """The text of a kernel."""
    return KERNEL.format(statement=statement, name=name, **PLACES | places)


def programs(bad):
    """A file with the kernels `good`, which doubles, and `bad`, which has the statement given."""
    return HEAD + kernel(DOUBLE, "good") + kernel(bad, "bad")
