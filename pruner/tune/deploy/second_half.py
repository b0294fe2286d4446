"""Compile half of a network's functions in a second process.

LLVM takes most of the time of a build, on one core. A forked process shares the scheduled
functions; it writes an object file, which is linked with that of the other half.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from pathlib import Path
from typing import Any

from pruner.errors import PrunerError
from pruner.processes import Worker
from pruner.tune.compiling import foreign_triple, pass_context
from pruner.tune.networks.rewrites.operators import functions_of
from pruner.tune.tvm_import import load_tvm

log = logging.getLogger(__name__)

_FEWEST = 4  # functions that are worth a process
_LIMIT_S = 3600.0


class SecondHalf:
    """Functions of a network that another process compiles into ``path``.

    It must be closed.
    """

    def __init__(self, target: Any, path: Path) -> None:
        self._target, self._path = target, path
        self._functions: Any = None
        self._worker: Worker | None = None

    def take(self, module: Any) -> Any:
        """Take functions of a module for the other process; return the rest.

        The module is complete: these functions become names of compiled functions there.
        """
        tvm, relax = load_tvm().tvm, load_tvm().relax
        every = list(functions_of(module).items())
        several = len(every) >= _FEWEST and len(os.sched_getaffinity(0)) > 1
        if not several or multiprocessing.current_process().daemon:  # which may start no process
            return module
        if self._target.kind.name != "llvm" or foreign_triple(self._target):
            return module
        # equal operators are neighbours by name, and take about the same time
        theirs = sorted(every, key=lambda one: str(one[0].name_hint))[::2]
        self._functions = tvm.IRModule(dict(theirs), attrs=module.attrs)
        rest = module.clone()
        for name, function in theirs:
            rest[name] = relax.ExternFunc(str(function.attrs["global_symbol"]))
        worker = Worker(self, method="fork", timeout_s=_LIMIT_S)
        try:
            worker.send(self.compile.__name__)
        except OSError as error:  # no memory for a process, for example
            worker.stop()
            log.warning("no second process: %s", error)
            return module
        self._worker = worker
        return rest

    def compile(self) -> None:
        """Compile the functions that were taken."""
        with self._target, pass_context(self._functions, self._target):
            # as relax.build compiles the others
            built = load_tvm().tvm.tirx.build(self._functions, self._target, pipeline="default")
        built.write_to_file(str(self._path))

    def objects(self) -> list[str]:
        """Wait for the object file; return its path, nothing where no function was taken.

        Raises:
            PrunerError: TVM cannot compile the functions, in one line.
        """
        if self._worker is None:
            return []
        reply = self._worker.receive()
        if reply.error is not None:  # the process was ended, for example
            log.warning("the second process failed (%s): this one compiles", reply.line)
            try:
                self.compile()
            except Exception as error:  # compilers raise kinds of their own
                raise not_built(error) from error
        return [str(self._path)]

    def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.stop()


def not_built(error: Exception) -> PrunerError:
    """Describe a compiler's error in one line."""
    lines = str(error).strip().splitlines() or [repr(error)]
    return PrunerError(f"the network could not be built: {lines[-1]}")
