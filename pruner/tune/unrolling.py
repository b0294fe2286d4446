"""Let nvcc unroll loops of CUDA programs that contain shared memory.

Without ``StorageRewrite`` (:func:`pruner.tune.compiling.pass_context`) every body that TVM writes
out has buffers of its own, and nvcc adds up what ``VerifyGPUCode`` counted once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from pruner.tune.tvm_import import inside, load_tvm, map_functions

_STEPS, _EXPLICIT = "pragma_auto_unroll_max_step", "pragma_unroll_explicit"
_PIPELINE = "software_pipeline_stage"
_SERIAL = (0, 3)  # kinds of loops: serial, unrolled


@dataclass(frozen=True, slots=True)
class _Placed:
    """A block and the loops around it within a thread, outermost first."""

    block: Any
    loops: Sequence[Any]


def unrolled_by_nvcc(module: Any) -> Any:
    """Request ``#pragma unroll`` where TVM's unrolling may multiply a shared buffer."""
    rule = load_tvm().tirx.For, _said_to_nvcc

    def unrolled(function: Any) -> Any:
        return load_tvm().ffi.structural_map(function, rule) if _multiplies(function) else function

    return map_functions(module, unrolled)


def _said_to_nvcc(loop: Any) -> Any:
    if _EXPLICIT not in loop.annotations:
        return loop
    # 0 makes TVM print the pragma and leave the loop alone
    annotations = {**dict(loop.annotations.items()), _EXPLICIT: 0}
    place = (loop.thread_binding, annotations, loop.step, loop.span)
    return type(loop)(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, *place)


def _multiplies(function: Any) -> bool:
    """Check whether TVM may write out a loop with a shared buffer.

    TVM does so from the innermost loop outwards, for loops below a limit of steps; the count here
    is a lower bound of TVM's count. Pipelines are excluded: their copies wait for each other by
    numbers that TVM must compute.
    """
    loops = inside(function.body, load_tvm().tirx.For)
    limits = [int(loop.annotations.get(_STEPS, 0)) for loop in loops if _is_written_out(loop)]
    allowed = max(limits, default=0)
    piped = any(_PIPELINE in loop.annotations for loop in loops)
    placed = list(_placed(function.body, ())) if allowed and not piped else []
    for one in placed:
        for region in one.block.writes:
            if str(region.source.scope()) == "shared":
                loop = _shared_loop(one, placed, region.source)
                if loop is not None and _steps(loop, placed) <= allowed:
                    return True
    return False


def _is_written_out(loop: Any) -> bool:
    return bool(int(loop.annotations.get(_EXPLICIT, 0)))


def _placed(stmt: Any, loops: Sequence[Any]) -> Iterator[_Placed]:
    kind = type(stmt).__name__
    if kind == "SeqStmt":
        for part in stmt.seq:
            yield from _placed(part, loops)
    elif kind == "For":
        # loops bound to threads are not unrolled, and a single turn multiplies nothing
        alone = stmt.thread_binding is None and int(stmt.kind) in _SERIAL and int(stmt.extent) > 1
        yield from _placed(stmt.body, [*loops, stmt] if alone else loops)
    elif kind == "SBlockRealize":
        yield _Placed(stmt.block, loops)
        yield from _placed(stmt.block.body, loops)


def _shared_loop(writer: _Placed, placed: Sequence[_Placed], buffer: Any) -> Any | None:
    """Find the innermost loop around all uses of a buffer, or None."""
    readers = [
        one for one in placed if any(region.source.same_as(buffer) for region in one.block.reads)
    ]
    around = reversed(writer.loops)
    return next((loop for loop in around if all(_is_in(one, loop) for one in readers)), None)


def _is_in(one: _Placed, loop: Any) -> bool:
    return any(other.same_as(loop) for other in one.loops)


def _steps(loop: Any, placed: Sequence[_Placed]) -> int:
    """Count the runs of the most frequent block in a complete loop."""
    runs = []
    for one in placed:
        places = [i for i, other in enumerate(one.loops) if other.same_as(loop)]
        runs += [prod(int(inner.extent) for inner in one.loops[places[0] :])] if places else []
    return max(runs)
