"""Inputs, priority and errors of a measured program, also for Ansor."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pruner.archives import read_arrays, write_arrays
from pruner.errors import DataError
from pruner.processes import NoReference
from pruner.progress import Log

Arguments = Sequence[tuple[tuple[int, ...], str]]  # shape and dtype of each

Kind = Literal["signed", "positive", "edges"]  # of inputs

# Half precision accumulates in half precision here, so its sums are only this close.
TOLERANCE = {"float32": 1e-4, "float64": 1e-9, "float16": 3e-2, "bfloat16": 2.4e-1}
CODE, SCRATCH = "code_bytes", "scratch_bytes"  # of a built program
FLOOR = 8.0
"""With normally distributed results, the error allowed near zero equals about the tolerance times
the largest of a million values; with results of many magnitudes it is far smaller."""
QUANTISED = 1 / 127  # a step of 8 bits: of networks that round, relative to the largest value
STEPS = 16  # of the range of rounded values; labels and masks have fewer
MAX_SAMPLE = 1 << 20  # values whose median is the usual magnitude


def are_timings(costs_s: Sequence[float]) -> bool:
    """Check that there are timings, and that each is finite and above 0."""
    # the comparison is false for NaN, too
    return len(costs_s) > 0 and all(0.0 < cost < float("inf") for cost in costs_s)


def size_bytes(parts: Mapping[str, Any]) -> float | None:
    """Add code and scratch memory; None where they were not read."""
    values = [parts.get(name) for name in (CODE, SCRATCH)]
    known = [float(value) for value in values if isinstance(value, int | float)]
    return sum(known) if len(known) == len(values) else None


def tolerance(arguments: Arguments) -> float:
    """Return the largest relative error that counts as right; 0 for integers."""
    return max(TOLERANCE.get(dtype, 0.0) for _, dtype in arguments)


def relative_error(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    """Compute the largest error relative to the largest value.

    max |found - wanted| / max |wanted|; see `gaps`. For complete networks, whose engines compute in
    different ways; kernels are held to `worst_error`.
    """
    return float(gaps(found, wanted).max(initial=0.0)) / largest(wanted)


def largest(wanted: NDArray[Any]) -> float:
    """Return the largest finite magnitude, 1 where it is 0."""
    magnitude = np.abs(wanted.astype(np.float64))
    return float(magnitude.max(initial=0.0, where=np.isfinite(magnitude))) or 1.0


def gaps(found: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.float64]:
    """Compute the absolute difference of every element.

    0 for equal infinities, and for NaN where `wanted` has it, unless it has nothing else; infinite
    for other values that are not finite.
    """
    same = found == wanted
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    if not np.isnan(wanted).all():
        same |= np.isnan(found) & np.isnan(wanted)
    with np.errstate(invalid="ignore"):
        apart = np.abs(found - wanted)
    return np.where(same, 0.0, np.where(np.isfinite(apart), apart, np.inf))


def step_of(wanted: NDArray[Any]) -> float:
    """Return the step between rounded values; 0 without a grid.

    1 for integers. Floats lie on a grid if half of them are repeated and all distances are
    multiples of the smallest. Switches and values that range over fewer than `STEPS` steps have
    none: these are masks and labels, of which each must be right.
    """
    if wanted.dtype.kind in "iu":
        is_wide = wanted.size and int(wanted.max()) - int(wanted.min()) >= STEPS
        return 1.0 if is_wide else 0.0
    if wanted.dtype.kind != "f":
        return 0.0
    values = np.unique(wanted[np.isfinite(wanted)].astype(np.float64))
    if len(values) < 2 or 2 * len(values) > wanted.size:
        return 0.0
    step = float(np.diff(values).min())
    steps = np.diff(values) / step
    is_grid = np.abs(steps - np.rint(steps)).max() < 0.01 and steps.sum() > STEPS - 0.5
    return step if is_grid else 0.0


def other_inputs(arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Change the inputs of a network; each stays as valid as it is.

    Rows are exchanged, and floats shrink. Equal floats become random numbers below 1; equal
    integers, which may be indices, stay.
    """
    rng = np.random.default_rng(0)
    found = []
    for array in arrays:
        is_float = array.dtype.kind == "f"
        if is_float and array.size and (array == array.flat[0]).all():
            found.append(np.asarray(rng.random(array.shape), array.dtype))
            continue
        axis = next((n for n, size in enumerate(array.shape) if size > 1), None)
        rolled = array if axis is None else np.roll(array, 1, axis)
        # an array also of a single number, whose product is none
        found.append(np.asarray(rolled * 0.75, array.dtype) if is_float else rolled)
    return found


def worst_error(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    """Compute the largest error of an element, relative to its magnitude.

    max |found - wanted| / (|wanted| + FLOOR * the usual |wanted|).

    The usual magnitude is the median of the values that are not zero (1 / FLOOR where all are): an
    element near zero is a sum that cancels, whose rounding is that of its terms. Where the
    reference has NaN or infinity, so must `found`; infinite where they differ in that, or in shape.
    """
    if found.shape != wanted.shape:
        return float("inf")
    if found.dtype == wanted.dtype and np.array_equal(found, wanted):
        return 0.0  # inputs, which most programs do not change: no copies in float64
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    differs = ~((found == wanted) | (np.isnan(found) & np.isnan(wanted)))
    if not differs.any():
        return 0.0
    usual, found, wanted = _usual(np.abs(wanted)), found[differs], wanted[differs]
    if not (np.isfinite(found).all() and np.isfinite(wanted).all()):
        return float("inf")
    return float((np.abs(found - wanted) / (np.abs(wanted) + FLOOR * usual)).max())


def _usual(magnitude: NDArray[np.float64]) -> float:
    # an odd step: an even one would sample the same columns of every row of an even width
    values = magnitude.ravel()[:: 1 + 2 * (magnitude.size // (2 * MAX_SAMPLE))]
    values = values[np.isfinite(values) & (values > 0)]
    return float(np.median(values)) if values.size else 1 / FLOOR


def inputs(arguments: Arguments, seed: int = 0, kind: Kind = "signed") -> list[NDArray[Any]]:
    """Draw the inputs that all candidates and the reference share.

    ``signed``: in [-1, 1), integers in [0, 8). ``positive``: in (0, 1], for operators that are not
    defined below zero. ``edges``: half of the values are 0, 1, -1 or a thousandth of the usual.
    """
    rng = np.random.default_rng(seed)
    out = []
    for shape, dtype in arguments:
        values: NDArray[Any]
        if dtype.startswith(("float", "bfloat")):
            # drawn as float32 for every float type: the generator has no half precision
            values = _FLOATS[kind](rng, shape)
        else:
            values = rng.integers(0, 2 if dtype == "bool" else 8, shape)
        out.append(values.astype(dtype))
    return out


def _signed(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    return rng.random(shape, dtype=np.float32) * 2 - 1


def _edges(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    values, case = _signed(rng, shape), rng.integers(0, 12, shape)
    small = values * np.float32(1e-3)
    return np.select([case == 0, case == 1, case == 2, case < 6], [0.0, 1.0, -1.0, small], values)


_FLOATS: dict[Kind, Callable[..., NDArray[np.float32]]] = {
    "signed": _signed,
    "positive": lambda rng, shape: 1 - rng.random(shape, dtype=np.float32),
    "edges": _edges,
}


def defined(values: Sequence[NDArray[Any]]) -> bool:
    """Check that no value is NaN."""
    return not any(bool(np.isnan(v).any()) for v in values if v.dtype.kind not in "iub")


def save_reference(path: Path, results: Mapping[Kind, Sequence[NDArray[Any]]]) -> None:
    """Write all arguments after a run by kind of inputs, bfloat16 as float32."""
    names = {
        f"{kind}.{i}": v.astype(np.float32) if v.dtype.name == "bfloat16" else v
        for kind, values in results.items()
        for i, v in enumerate(values)
    }
    write_arrays(path, **names)


def load_reference(path: str) -> dict[Kind, list[NDArray[Any]]]:
    """Read the file of `save_reference`; raise `NoReference` where it is none."""
    found: dict[Kind, list[NDArray[Any]]] = {}
    try:
        stored = read_arrays(Path(path))
        for kind in _FLOATS:
            names = [name for name in stored if name.startswith(f"{kind}.")]
            if names:
                found[kind] = [stored[f"{kind}.{i}"] for i in range(len(names))]
    except (DataError, KeyError) as error:
        raise NoReference(f"{path}: {error}") from error
    if not found:
        raise NoReference(f"{path}: no results in it")
    return found


class TaskReference:
    """The expected results of a task, computed once and kept in a file."""

    def __init__(
        self, name: str, module: Any, arguments: Arguments, path: Path, measurer: Any, log: Log
    ) -> None:
        """Compute the results of `module`, called `name` in lines, into `path` by a measurer."""
        self._name, self._path, self._log = name, path, log
        self._what, self._measurer = (module, arguments, path), measurer
        self._begun: Future[str | None] | None = None  # at work
        self._known: tuple[Path | None] | None = None

    def begin(self) -> None:
        """Begin to compute the results, unless they are begun or in a readable file."""
        if self._begun is not None or self._known is not None:
            return
        if self._path.is_file():
            try:
                load_reference(str(self._path))
                self._known = (self._path,)
                return
            except NoReference as error:
                self._log(f"{self._name}: its reference is computed again ({error})")
                self._path.unlink()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._begun = self._measurer.begin_reference(*self._what)

    def check(self, wait: Callable[[Future[Any]], object]) -> Path | None:
        """Return the file to compare with; None, with a report, if its computation failed.

        None, too, if it is not there after ``wait(future)``; a later call may have it.
        """
        self.begin()
        if self._known is None:
            assert self._begun is not None, self._name
            wait(self._begun)
            if not self._begun.done():
                return None
            reason = self._begun.result()
            if reason is not None:
                self._log(f"{self._name}: RESULTS ARE NOT CHECKED, no reference ({reason})")
            self._known = (self._path if reason is None else None,)
        return self._known[0]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Run this process's threads before ordinary processes, where permitted."""
    _schedule(os.SCHED_FIFO, priority=1)
    try:
        yield
    finally:
        _schedule(os.SCHED_OTHER, priority=0)


def _schedule(policy: int, priority: int) -> None:
    # TVM's thread pool exists already, and Linux sets the policy of single threads only
    for thread in Path("/proc/self/task").iterdir():
        with suppress(PermissionError, ProcessLookupError):
            os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))
