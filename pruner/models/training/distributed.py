"""Run a fit in several processes: copies of the first, with its data."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from lightning_fabric.plugins.environments.lightning import (
    LightningEnvironment,
    find_free_network_port,
)

from pruner.errors import PrunerError
from pruner.processes import in_workers

Result = TypeVar("Result")
_FAREWELL_S = 60.0  # for a copy to end after the first, which computed the same


@dataclass(frozen=True, slots=True)
class Process:
    """Process number `rank` of `of` in a fit, connected to `port` of this machine."""

    rank: int = 0
    of: int = 1
    port: int = 0

    @property
    def is_first(self) -> bool:
        """Whether its results are the results of the fit."""
        return self.rank == 0

    @property
    def plugins(self) -> list[LightningEnvironment]:
        """Plugins of Lightning's Trainer for this process."""
        return [_Given(self)] if self.of > 1 else []


SINGLE_PROCESS = Process()


class _Given(LightningEnvironment):
    """Lightning's environment for a process that exists: Lightning starts none."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self._main_port = process.port

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return "127.0.0.1"

    def local_rank(self) -> int:
        return self._process.rank

    def node_rank(self) -> int:
        return 0


def in_processes(number: int, run: Callable[[Process], Result]) -> Result:
    """Run in `number` processes, this being the first; raises PrunerError where one fails."""
    if number == 1:
        return run(SINGLE_PROCESS)
    # CUDA's context does not survive a fork.
    if torch.cuda.is_initialized():
        raise PrunerError(
            f"trainer.devices={number}: this process has used a GPU already, so that no copy can; "
            "one fit a command: one seed, no schedule=soup"
        )
    port = find_free_network_port()
    first, *others = (Process(rank, number, port) for rank in range(number))
    try:
        with _threads_stay(), in_workers(others, partial(_copy, run), number - 1) as ended:
            try:
                result = run(first)
            except RuntimeError as error:  # such as a connection closed by a copy
                # The copy's own error is the cause, the closed connection its effect.
                for copy in ended(1.0):
                    if copy.error is not None:
                        raise copy.error from error
                raise
            list(ended(_FAREWELL_S))
            return result
    finally:
        _part()


@contextmanager
def _threads_stay() -> Iterator[None]:
    """Set the threads of copies, unless set; Lightning would divide the cores."""
    name = "OMP_NUM_THREADS"
    before = os.environ.get(name)
    os.environ[name] = before or str(torch.get_num_threads())
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]


def _copy(run: Callable[[Process], object], process: Process) -> None:
    try:
        run(process)
    except BaseException as error:
        message = f"process {process.rank} of {process.of}: {type(error).__name__}: {error}"
        raise PrunerError(message) from error  # the first process reports it
    finally:
        _part()


def _part() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
