"""Import TVM with this module, before the server process forks workers."""

from pruner.tune.tvm_import import load_tvm, without_torch

with without_torch():
    load_tvm()
