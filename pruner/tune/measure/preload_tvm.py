"""Import TVM with this module, before the server process forks workers."""

from pruner.tune.tvm_import import load_tvm

load_tvm()
