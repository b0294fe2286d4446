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
import os
import sys
from collections import deque
from collections.abc import Collection, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pruner.errors import PrunerError
from pruner.processes import Reply, WorkerPool
from pruner.tune.measure.jobs import load_target
from pruner.tune.networks.filtering.outline import Outline, outline
from pruner.tune.networks.lowering import NetworkFormat
from pruner.tune.networks.request import sized_network
from pruner.tune.networks.sizes import NetworkOptions
from pruner.tune.networks.source import NetworkSource, import_module, own_path
from pruner.tune.tvm_import import load_tvm

_LIMIT_S = 600.0  # of an outline
_MOST_WORKERS = 4  # each has torch and TVM in memory
_AHEAD = 2  # outlines in work, for each process


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlined:
    """A candidate with its outline, or the ``reason`` why it has none."""

    name: str
    outline: Outline | None = None
    reason: str = ""


def read_networks(path: Path, seed: int = 0) -> list[NetworkSource]:
    """Read a file with a network in each line; # begins a remark.

    Raises:
        PrunerError: no network is in it, or a line that cannot be a network.
    """
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    found = [source_of(line, seed) for line in lines if line and not line.startswith("#")]
    if not found:
        raise PrunerError(f"networks={path}: it names no network; write one in each line")
    return found


def source_of(line: str, seed: int = 0) -> NetworkSource:
    """Make the source of a network and its sizes: ``mobilenet_v2 image=160``.

    Raises:
        PrunerError: another word among the sizes, or a network that is not in the catalog.
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
        """Check that the package of the generator exists, without running its code.

        Raises:
            PrunerError: it does not.
        """
        if self.generator is None:
            return
        package, _, function = self.generator.partition(":")
        own_path()
        try:
            found = importlib.util.find_spec(package) if function.isidentifier() else None
        except (ImportError, ValueError):
            found = None
        if found is None:
            raise PrunerError(
                f"networks={self.generator}: no such package or function; give package:function, "
                "a file with a network in each line, or a list of networks"
            )

    def outlined(
        self, target_json: str, form: NetworkFormat, known: Collection[str]
    ) -> Generator[Outlined, None, None]:
        """Yield the outlines in order; `known` may grow meanwhile.

        Raises:
            PrunerError: the generator cannot be imported, or yields something else.
        """
        cores = len(os.sched_getaffinity(0))
        size = min(cores, _MOST_WORKERS, len(self.sources) or _MOST_WORKERS)
        environment = {"OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1"}
        pool = WorkerPool(
            size, __name__, environment=environment, timeout_s=_LIMIT_S, method="spawn"
        )
        with closing(pool):
            waiting: deque[tuple[int, Future[Reply]]] = deque()
            number, ended = 0, False
            while True:
                while not ended and len(waiting) < _AHEAD * size:
                    if self._has(number):
                        job = self._job(number)
                        given = (target_json, form, frozenset(known))
                        waiting.append((number, pool.submit(*job, *given)))
                        number += 1
                    else:
                        ended = True
                if not waiting:
                    return
                place, future = waiting.popleft()
                found = self._found(place, future.result())
                if found is None:
                    ended = True
                else:
                    yield found

    def _has(self, number: int) -> bool:
        if self.most is not None and number >= self.most:
            return False
        return self.generator is not None or number < len(self.sources)

    def _job(self, number: int) -> tuple[Any, ...]:
        if self.generator is not None:
            return outline_yielded.__name__, self.generator, number
        return outline_source.__name__, self.sources[number]

    def _found(self, number: int, reply: Reply) -> Outlined | None:
        if reply.error is None:
            found: Outlined | None = reply.value
            return found
        if reply.mistake is not None and self.generator is not None:
            raise PrunerError(reply.mistake)  # of the generator: an outline's is in its `reason`
        name = f"candidate {number}" if self.generator else self.sources[number].label
        return Outlined(name=name, reason=reply.line)


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
) -> Outlined:
    """Outline a network of a list."""
    words = [f"{name}={size}" for name, size in source.options.given.items()]
    name = " ".join([source.name, *words])
    try:
        found = outline(sized_network(source), load_target(target_json), form, known)
    except PrunerError as error:
        return Outlined(name=name, reason=str(error))
    return Outlined(name=name, outline=found)


def outline_yielded(
    generator: str, number: int, target_json: str, form: NetworkFormat, known: Collection[str]
) -> Outlined | None:
    """Outline a network of a generator by its number; None behind the last.

    Raises:
        PrunerError: the generator cannot be imported, or yields something else.
    """
    found = _opened(generator).take(number)
    if found is None:
        return None
    name, module, inputs = found
    try:
        imported = import_module(module.eval(), inputs, name)
        return Outlined(name=name, outline=outline(imported, load_target(target_json), form, known))
    except PrunerError as error:
        return Outlined(name=name, reason=str(error))


@cache
def _opened(generator: str) -> _Generator:
    return _Generator(generator)


class _Generator:
    """The candidates of ``package:function``, by increasing number."""

    def __init__(self, word: str) -> None:
        self._word, self._next = word, 0
        package, _, function = word.partition(":")
        own_path()
        try:
            self._make = getattr(importlib.import_module(package), function)
        except (ImportError, AttributeError) as error:
            raise PrunerError(f"networks={word}: {error}") from error
        self._yielded: Iterator[Any] | None = None

    def take(self, number: int) -> tuple[str, Any, Any] | None:
        """Return name, module and inputs of a candidate; None behind the last."""
        try:
            return self._taken(number)
        except PrunerError:
            raise
        except Exception as error:  # of the user's code
            line = (str(error).strip().splitlines() or [""])[0]
            raise PrunerError(f"networks={self._word}: {type(error).__name__}: {line}") from error

    def _taken(self, number: int) -> tuple[str, Any, Any] | None:
        if self._yielded is None or number < self._next:  # this process replaces another
            self._yielded, self._next = iter(self._make()), 0
        while True:
            found = next(self._yielded, None)
            if found is None:
                return None
            self._next += 1
            if self._next > number:
                return self._read(found)

    def _read(self, found: Any) -> tuple[str, Any, Any]:
        parts = tuple(found) if isinstance(found, tuple | list) else ()
        if len(parts) == 2 and callable(parts[1]):
            made = parts[1]()
            parts = (parts[0], *made) if isinstance(made, tuple) else ()
        module_type = sys.modules["torch"].nn.Module
        if len(parts) != 3 or not isinstance(parts[1], module_type):
            raise PrunerError(
                f"networks={self._word}: it must yield (name, module, inputs), or (name, make) "
                f"with a function that returns module and inputs; it yields {type(found).__name__}"
            )
        return str(parts[0]), parts[1], parts[2]
