"""Jobs in forked processes: what the parent has read is in memory once.

For fits, which share gigabytes of programs. Other ways to use processes, and why they are others:
shell commands (`study/commands`); files that are read where they are worked on, in fresh
interpreters (``featurize.py``); candidates that may crash or hang (`tune/measure/isolation`);
Ansor's, where only the standard library is at hand (`tune/rivals/ansor_child`).
"""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from pruner.errors import PrunerError
from pruner.progress import Tell
from pruner.tune.child import end_with_parent

_Job = TypeVar("_Job")


@contextmanager
def forked(
    jobs: Sequence[_Job], run: Callable[[_Job], Any], number: int, tell: Tell
) -> Iterator[Any]:
    """Run the jobs in `number` processes, first come, first served, while the body goes on.

    Yields a function that waits a moment and tells whether one of them still works. Leaving the
    body ends them. Results are what `run` writes; a PrunerError is one line for `tell`, and the
    next job follows.

    Raises PrunerError where this process has several threads: its copies may wait for them forever.
    """
    if torch.get_num_threads() > 1:
        raise PrunerError(f"num_workers={number}: several processes need num_threads=1")
    context = multiprocessing.get_context("fork")
    taken = context.Value("i", 0)
    processes = [
        context.Process(target=_work, args=(jobs, run, taken, tell), daemon=True)
        for _ in range(number)
    ]

    def working() -> bool:
        alive = [process for process in processes if process.is_alive()]
        if alive:
            alive[0].join(0.2)
        return bool(alive)

    for process in processes:
        process.start()
    try:
        yield working
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _work(jobs: Sequence[_Job], run: Callable[[_Job], Any], taken: Any, tell: Tell) -> None:
    end_with_parent()
    torch.set_num_threads(1)  # the processes share the cores
    while True:
        with taken.get_lock():
            number = taken.value
            taken.value += 1
        if number >= len(jobs):
            return
        try:
            run(jobs[number])
        except PrunerError as error:
            tell(f"error: {error}")
