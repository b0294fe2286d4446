"""Networks of a list or of a generator, outlined in worker processes.

A list has the words of ``network=``, each with its sizes: ``mobilenet_v2 image=160``. A generator
is ``package:function``, a function without arguments that yields ``(name, module, inputs)``, or
``(name, make)`` with a function ``make()`` that returns module and inputs: then a process makes
only the networks that it outlines. Torch and TVM stay imported in the processes.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import itertools
import os
import random
import sys
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pruner.errors import PrunerError
from pruner.processes import NO_WORKER, TIMEOUT, Reply, WorkerPool
from pruner.tune.measure.jobs import load_target
from pruner.tune.networks.filtering.outline import Outline, outline
from pruner.tune.networks.lowering import NetworkFormat, first_line
from pruner.tune.networks.request import sized_network
from pruner.tune.networks.sizes import NetworkOptions
from pruner.tune.networks.source import NetworkSource, import_module, own_path, seed_all
from pruner.tune.tvm_import import load_tvm

_LIMIT_S = 600.0  # of an outline
_MOST_WORKERS = 4  # each has torch and TVM in memory
_AHEAD = 2  # outlines in work, for each process
_MOST_ENDED = 3  # processes in a row: a generator that hangs has no end


def read_networks(path: Path, seed: int = 0) -> list[NetworkSource]:
    """Read a file with a network in each line; # begins a remark.

    Raises `PrunerError`: no text, no network is in it, or a line that cannot be a network.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise PrunerError(
            f"networks={path}: it is no text; give a file with a network in each line, FILE.pt2 "
            "(of torch.export.save) or FILE.onnx; weights alone and pickled modules: yield the "
            "module in Python, package:function"
        ) from error
    lines = [line.strip() for line in text.splitlines()]
    found = [source_of(line, seed) for line in lines if line and not line.startswith("#")]
    if not found:
        raise PrunerError(f"networks={path}: it names no network; write one in each line")
    return found


def source_of(line: str, seed: int = 0) -> NetworkSource:
    """Make the source of a network and its sizes: ``mobilenet_v2 image=160``.

    Raises `PrunerError`: another word among the sizes, or a network that is not in the catalog.
    """
    name, *words = line.split()
    pairs = [word.removeprefix("sizes.").partition("=") for word in words]
    odd = [word for word, pair in zip(words, pairs, strict=True) if not (pair[0] and pair[2])]
    if odd:
        raise PrunerError(f"networks: {odd[0]} in the line of {name}: write sizes as image=160")
    numbers = {key: int(value) if value.isdigit() else value for key, _, value in pairs}
    source = NetworkSource(name=name, options=NetworkOptions(**numbers), seed=seed)
    source.check_name()
    return source


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Networks to outline: ``sources``, or what ``generator`` yields; at most ``most``."""

    sources: Sequence[NetworkSource] = ()
    generator: str | None = None
    most: int | None = None

    def check(self) -> None:
        """Check that the module of the generator exists; packages above it are imported.

        Raises `PrunerError`: it does not, or a package above it fails.
        """
        if self.generator is None:
            return
        package, _, function = self.generator.partition(":")
        own_path()
        try:
            found = importlib.util.find_spec(package) if function.isidentifier() else None
        except (ImportError, ValueError):
            found = None
        except Exception as error:  # of the code of a package above it
            raise PrunerError(f"networks={self.generator}: {first_line(error)}") from error
        if found is None:
            raise PrunerError(
                f"networks={self.generator}: no such package or function; give package:function, "
                "a file with a network in each line, or a list of networks"
            )

    def outlined(
        self, target_json: str, form: NetworkFormat, known: Collection[str]
    ) -> Generator[Outline, None, None]:
        """Yield the outlines in order; `known` may grow meanwhile.

        A network whose passes end the process is lowered once more without the layout, as in a
        tuning run.

        Raises `PrunerError`: the generator cannot be imported, yields something else, or ends
        several processes in a row.
        """
        cores = len(os.sched_getaffinity(0))
        size = min(cores, _MOST_WORKERS, len(self.sources) or _MOST_WORKERS)
        environment = {"OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1"}
        pool = WorkerPool(
            size, __name__, environment=environment, timeout_s=_LIMIT_S, method="spawn"
        )

        every: Iterable[int] = itertools.count()
        if self.generator is None:
            every = range(len(self.sources))
        numbers, ended = itertools.islice(every, self.most), 0

        def submitted(number: int, form: NetworkFormat) -> Future[Reply]:
            job: tuple[Any, ...] = (outline_yielded.__name__, self.generator, number)
            if self.generator is None:
                job = (outline_source.__name__, self.sources[number])
            return pool.submit(*job, target_json, form, frozenset(known))

        with closing(pool):
            waiting: deque[tuple[int, Future[Reply]]] = deque()
            while True:
                for number in itertools.islice(numbers, _AHEAD * size - len(waiting)):
                    waiting.append((number, submitted(number, form)))
                if not waiting:
                    return
                place, future = waiting.popleft()
                reply = future.result()
                if reply.crashed and form != form.plain:
                    reply = submitted(place, form.plain).result()
                ended = ended + 1 if reply.crashed or reply.error in (TIMEOUT, NO_WORKER) else 0
                if self.generator is not None and ended == _MOST_ENDED:
                    raise PrunerError(
                        f"networks={self.generator}: it hangs, or ends its process: {ended} "
                        f"candidates in a row had no result ({reply.line}); mend it, or leave "
                        "these networks out"
                    )
                found = self._found(place, reply)
                if found is None:
                    numbers = itertools.islice(every, 0)  # no more
                else:
                    yield found

    def _found(self, number: int, reply: Reply) -> Outline | None:
        if reply.error is None:
            return reply.value
        if reply.mistake is not None and self.generator is not None:
            raise PrunerError(reply.mistake)  # of the generator: an outline's is in its `reason`
        name = f"candidate {number}" if self.generator else self.sources[number].label
        return Outline(name=name, reason=reply.line)


def ready() -> None:
    """Import TVM and torch in a worker."""
    load_tvm()
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    torch.fx.config.do_not_emit_stack_traces = True  # nobody reads the graphs
    gc.collect()
    gc.freeze()  # imported objects stay


def outline_source(
    source: NetworkSource, target_json: str, form: NetworkFormat, known: Collection[str]
) -> Outline:
    """Outline a network of a list."""
    words = [f"{name}={size}" for name, size in source.options.given.items()]
    name = " ".join([source.name, *words])
    try:
        found = outline(sized_network(source), load_target(target_json), form, known)
    except PrunerError as error:
        return Outline(name=name, reason=str(error))
    return replace(found, name=name)


def outline_yielded(
    generator: str, number: int, target_json: str, form: NetworkFormat, known: Collection[str]
) -> Outline | None:
    """Outline a network of a generator by its number; None behind the last.

    Raises `PrunerError`: the generator cannot be imported, or yields something else.
    """
    found = _opened(generator).take(number)
    if found is None:
        return None
    if isinstance(found, Outline):
        return found
    name, module, inputs = found
    try:
        imported = import_module(module.eval(), inputs, name)
        made = outline(imported, load_target(target_json), form, known)
    except PrunerError as error:
        return Outline(name=name, reason=str(error))
    return replace(made, name=name)


class _Generator:
    """The candidates of ``package:function``, by increasing number.

    It draws the same random numbers in each process, although each process makes other networks,
    which draw weights.
    """

    def __init__(self, word: str) -> None:
        self._word, self._next = word, 0
        package, _, function = word.partition(":")
        own_path()
        try:
            self._make = getattr(importlib.import_module(package), function)
        except Exception as error:  # of any kind: its code runs
            raise PrunerError(f"networks={word}: {first_line(error)}") from error
        self._yielded: Iterator[Any] | None = None
        self._drawn: Any = None  # states of the random numbers behind the last candidate

    def take(self, number: int) -> tuple[str, Any, Any] | Outline | None:
        """Return name, module and inputs of a candidate; None behind the last.

        A candidate that cannot be made is returned with the reason.
        """
        try:
            found = self._taken(number)
            return None if found is None else self._read(found)
        except PrunerError:
            raise
        except Exception as error:  # of the user's code
            raise PrunerError(f"networks={self._word}: {first_line(error)}") from error

    def _taken(self, number: int) -> Any:
        torch: Any = sys.modules["torch"]
        if self._yielded is None or number < self._next:  # this process replaces another
            seed_all(0)
            self._yielded, self._next = iter(self._make()), 0
        else:
            python, numpy, of_torch = self._drawn
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
            torch.set_rng_state(of_torch)
        found = next(itertools.islice(self._yielded, number - self._next, None), None)
        self._next = number + 1
        numpy = np.random.get_state()  # noqa: NPY002
        self._drawn = random.getstate(), numpy, torch.get_rng_state()
        return found

    def _read(self, found: Any) -> tuple[str, Any, Any] | Outline:
        parts = tuple(found) if isinstance(found, tuple | list) else ()
        if len(parts) == 2 and callable(parts[1]):
            try:
                made = parts[1]()
            except Exception as error:  # of the user's code: the other networks do not need it
                return Outline(name=str(parts[0]), reason=first_line(error))
            parts = (parts[0], *made) if isinstance(made, tuple) else ()
        module_type = sys.modules["torch"].nn.Module
        if len(parts) != 3 or not isinstance(parts[1], module_type):
            raise PrunerError(
                f"networks={self._word}: it must yield (name, module, inputs), or (name, make) "
                f"with a function that returns module and inputs; it yields {type(found).__name__}"
            )
        return str(parts[0]), parts[1], parts[2]


_opened = cache(_Generator)  # of this process
