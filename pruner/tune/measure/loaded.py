"""TVM, imported with this module: by the server process, once for all workers that it forks."""

from pruner.tune.tvm_import import load_tvm

load_tvm()
