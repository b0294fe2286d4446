"""Jobs of the workers of tests; they need no TVM."""

import multiprocessing
import os
import signal
import sys
import time

from pruner.errors import PrunerError

COUNTED = []
LOCK = multiprocessing.Lock()  # a library's, whose semaphore is left by a kill
sys.stdout.write("what a library prints when it is imported is no answer\n")


def ready():
    return True


def nap(seconds):
    time.sleep(seconds)
    return seconds


def count():
    """How often it was asked, and the environment that the module was imported with."""
    COUNTED.append(1)
    sys.stdout.write("counted\n")
    return len(COUNTED), ENVIRONMENT


def refuse(name):
    raise PrunerError(f"{name} is wrong")


def fail(text):
    raise ValueError(text)


def die(code):
    sys.stderr.write("last words")
    sys.stderr.flush()
    os._exit(code)


def end_by(number):
    os.kill(os.getpid(), number)
    time.sleep(60)


def end_so_often(folder, times):
    """SIGKILL, until it has been so often; the number."""
    before = len(list(folder.iterdir()))
    if before < times:
        (folder / str(before)).touch()
        end_by(signal.SIGKILL)
    return before


def allocate(size):
    return len(bytearray(size))


ENVIRONMENT = os.environ.get("OF_THIS_TEST")


def tvm_has(name):
    """Whether TVM has a global function, once the worker has loaded it."""
    from pruner.tune.tvm_import import load_tvm

    return load_tvm().tvm.get_global_func(name, True) is not None


def tvm_multiplies(name):
    """Whether it has an instruction, with computation and call."""
    from pruner.tune.tvm_import import load_tvm

    found = load_tvm().s_tir.TensorIntrin.get(name, True)
    return found is not None and "tvm_mma_sync" in found.impl.script()
