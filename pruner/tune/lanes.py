"""Rewrite vectors and loops of GPU programs that TVM or nvcc cannot write.

TVM's check of GPU code accepts these vectors, its compiler does not: 16-bit floats of an odd number
of lanes (codegen_cuda.cc); lanes that straddle rows, whose indices stay vectors for ``ThreadSync``
("(eval_vec_) is false", int_set.cc); more than four 16-bit values that are no neighbours, arguments
of ``make_uint4``. An asynchronous copy (``cp.async``) of a vector that lies at no multiple of its
bytes stops the device; ``InjectPTXAsyncCopy`` does not look for that.

Without ``StorageRewrite`` (:func:`pruner.tune.compiling.pass_context`) every body that TVM writes
out has buffers of its own, and nvcc adds up what ``VerifyGPUCode`` counted once: nvcc unrolls then.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from pruner.program.tir.shared import ASYNC_STAGES
from pruner.tune.tvm_import import (
    SERIAL,
    UNROLLED,
    VECTORIZED,
    changed_loop,
    holds,
    inside,
    load_tvm,
    map_functions,
)

_HALVES = ("float16", "bfloat16")
_MOST_GATHERED = 4  # lanes of 16 bits


def lanes_written_out(module: Any, target: Any) -> Any:
    """Replace the vectors that TVM cannot write by loops.

    Only TVM's passes decide whether lanes that straddle rows stop the compiler, and which lanes are
    neighbours, so the passes are run once more for functions where that is open.
    """

    def written_out(function: Any) -> Any:
        loops = inside(function.body, load_tvm().tirx.For)
        vectors = [loop for loop in loops if int(loop.kind) == VECTORIZED]
        ahead = copies_ahead(function)
        stop = [x for x in vectors if _is_odd(x) or (ahead and _may_be_misaligned(x))]
        doubtful = [loop for loop in vectors if _straddles(loop) or _may_gather(loop)]
        if doubtful and not _is_written(_unrolled(function, stop), target):
            stop += doubtful
        return _unrolled(function, stop)

    return map_functions(module, written_out)


def copies_ahead(function: Any) -> bool:
    """Check whether a loop of a function copies asynchronously into shared memory."""
    loops = inside(function.body, load_tvm().tirx.For)
    return any(ASYNC_STAGES in loop.annotations for loop in loops)


def _blocks(loop: Any) -> list[Any]:
    return inside(loop.body, load_tvm().s_tir.SBlockRealize)


def _is_odd(loop: Any) -> bool:
    """Check for a vector of 3, 5, 7 ... 16-bit floats."""
    blocks = [one.block for one in _blocks(loop)]
    buffers = [region.source for block in blocks for region in (*block.reads, *block.writes)]
    lanes = int(loop.extent)
    return lanes > 1 and lanes % 2 == 1 and any(str(x.dtype) in _HALVES for x in buffers)


def _straddles(loop: Any) -> bool:
    """Check whether a fetched vector may cover two rows of its source."""
    tirx, lanes = load_tvm().tirx, int(loop.extent)
    return any(
        int(part.b) % lanes != 0 and holds(part, loop.loop_var)
        for one in _blocks(loop)
        if any(str(region.source.scope()).startswith("shared") for region in one.block.writes)
        for value in one.iter_values
        for kind in (tirx.FloorDiv, tirx.FloorMod)
        for part in inside(value, kind)
    )


def _may_be_misaligned(loop: Any) -> bool:
    """Check whether a fetched vector may begin between two multiples of itself."""
    tvm, lanes = load_tvm().tvm, int(loop.extent)
    analyzer = tvm.sym.Analyzer()
    # the first lane decides: the others follow it
    analyzer.bind(loop.loop_var, loop.min)
    for one in _blocks(loop):
        if not str(one.block.writes[0].source.scope()).startswith("shared"):
            continue
        for iterator, value in zip(one.block.iter_vars, one.iter_values, strict=True):
            analyzer.bind(iterator.var, value)
        for load in inside(one.block.body, tvm.ir.TensorLoad):
            first = loop.min
            for index, extent in zip(load.indices, load.source.shape, strict=True):
                first = first * extent + index
            found = analyzer.modular_set(first)
            if int(found.coeff) % lanes or int(found.base) % lanes:
                return True
    return False


def _may_gather(loop: Any) -> bool:
    """Check whether more than four 16-bit lanes may be no neighbours.

    They are none where a lane moves an index that is not the last.
    """
    for one in _blocks(loop) if int(loop.extent) > _MOST_GATHERED else ():
        values = zip(one.block.iter_vars, one.iter_values, strict=True)
        moved = [x.var for x, value in values if _moves(value, loop.loop_var)]
        for load in inside(one.block.body, load_tvm().tvm.ir.TensorLoad):
            if any(holds(index, var) for index in load.indices[:-1] for var in moved):
                return True
    return False


def _moves(value: Any, lane: Any) -> bool:
    """Check that neighbouring lanes differ outside of quotients."""
    quotients = inside(value, load_tvm().tirx.FloorDiv)
    return holds(value, lane) and not any(holds(quotient, lane) for quotient in quotients)


def _is_written(function: Any, target: Any) -> bool:
    """Check that TVM compiles a function and gathers at most four lanes.

    Only InternalError means a refusal; any other error of TVM is raised.
    """
    tvm = load_tvm().tvm
    host = target.host if target.host is not None else tvm.target.Target("llvm")
    # the passes of the pipeline read the target from the function
    bound = tvm.tirx.transform.BindTarget(target.with_host(host))
    passes, *_ = tvm.tirx.get_default_tir_pipeline(target)
    try:
        lowered = passes(bound(tvm.IRModule({"main": function})))
    except tvm.error.InternalError:  # a check of a pass fails, as "(eval_vec_) is false" does
        return False
    loads = [
        load for _, one in lowered.functions_items() for load in inside(one.body, tvm.ir.TensorLoad)
    ]
    return not any(_is_gather(load) for load in loads)


def _is_gather(load: Any) -> bool:
    """Check for a strided load of more than four 16-bit lanes."""
    kind, _, lanes = str(load.ty).partition("x")
    index = load.indices[-1]
    is_row = type(index).__name__ == "Ramp" and str(index.stride) == "1"
    return kind in _HALVES and int(lanes or 1) > _MOST_GATHERED and not is_row


def _unrolled(function: Any, loops: list[Any]) -> Any:
    if not loops:
        return function
    tvm, ffi = load_tvm().tvm, load_tvm().ffi

    def rule(loop: Any) -> Any:
        if not any(loop.same_as(other) for other in loops):
            return loop
        return changed_loop(loop, kind=UNROLLED)

    return ffi.structural_map(function, (tvm.tirx.For, rule))


_STEPS, _EXPLICIT = "pragma_auto_unroll_max_step", "pragma_unroll_explicit"
_PIPELINE = "software_pipeline_stage"
_Placed = tuple[Any, Sequence[Any]]  # a block, and the loops around it


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
    return changed_loop(loop, annotations={**dict(loop.annotations.items()), _EXPLICIT: 0})


def _multiplies(function: Any) -> bool:
    """Check whether TVM may write out a loop with a shared buffer.

    TVM does so from the innermost loop outwards, for loops below a limit of steps; the count here
    is a lower bound of TVM's count. Pipelines are excluded: their copies wait for each other by
    numbers that TVM must compute.
    """
    loops = inside(function.body, load_tvm().tirx.For)
    notes = [loop.annotations for loop in loops if int(loop.annotations.get(_EXPLICIT, 0))]
    allowed = max((int(note.get(_STEPS, 0)) for note in notes), default=0)
    piped = any(_PIPELINE in loop.annotations for loop in loops)
    placed = list(_placed(function.body, ())) if allowed and not piped else []
    for block, around in placed:
        for region in block.writes:
            if str(region.source.scope()) == "shared":
                loop = _shared_loop(around, placed, region.source)
                if loop is not None and _steps(loop, placed) <= allowed:
                    return True
    return False


def _placed(stmt: Any, loops: Sequence[Any]) -> Iterator[_Placed]:
    """Yield every block, and the loops around it within a thread, outermost first."""
    kind = type(stmt).__name__
    if kind == "SeqStmt":
        for part in stmt.seq:
            yield from _placed(part, loops)
    elif kind == "For":
        # loops bound to threads are not unrolled, and a single turn multiplies nothing
        alone = (
            stmt.thread_binding is None
            and int(stmt.kind) in (SERIAL, UNROLLED)
            and int(stmt.extent) > 1
        )
        yield from _placed(stmt.body, [*loops, stmt] if alone else loops)
    elif kind == "SBlockRealize":
        yield stmt.block, loops
        yield from _placed(stmt.block.body, loops)


def _shared_loop(around: Sequence[Any], placed: Sequence[_Placed], buffer: Any) -> Any | None:
    """Find the innermost loop around all uses of a buffer, or None."""
    readers = [
        loops for block, loops in placed if any(r.source.same_as(buffer) for r in block.reads)
    ]
    inner = reversed(around)
    return next((loop for loop in inner if all(_is_in(loops, loop) for loops in readers)), None)


def _is_in(loops: Sequence[Any], loop: Any) -> bool:
    return any(other.same_as(loop) for other in loops)


def _steps(loop: Any, placed: Sequence[_Placed]) -> int:
    """Count the runs of the most frequent block in a complete loop."""
    runs = []
    for _, loops in placed:
        places = [i for i, other in enumerate(loops) if other.same_as(loop)]
        runs += [prod(int(inner.extent) for inner in loops[places[0] :])] if places else []
    return max(runs)
