"""What TVM makes of a decision vector: loops of every block, sizes of buffers, feature rows."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np

from pruner.features import STATEMENT_COLUMNS
from pruner.program.dag.expr import Axis, loads
from pruner.program.index import affine as af
from pruner.program.nests import Mark
from pruner.program.tir.apply_trace import apply_groups
from pruner.program.tir.lower import lower
from pruner.program.tir.regions import buffer_scopes, start_of
from pruner.program.tir.tree import renamed
from pruner.tune.compiling import compiled
from tests.tune.designs import kind_of

NAMES = [column.name for column in STATEMENT_COLUMNS]
_KINDS = {0: None, 1: "parallel", 2: "vectorize", 3: "unroll"}
_CUTTING = (
    "LowerCrossThreadReduction",
    "LowerInitBlock",
    "PlanAndUpdateBufferAllocationLocation",
    "ConvertBlocksToOpaque",
    "CompactBufferAllocation",
)


def replayed(tvm, design, decision):
    """The schedule after all postprocessors but the GPU check, and whether all accept it."""
    schedule = tvm.s_tir.Schedule(design.module, seed=1, debug_mask=0, error_render_level="none")
    try:
        trace = tvm.s_tir.Trace(design.trace.insts, design.mapping(decision))
        trace.apply_to_schedule(schedule, remove_postproc=True)
        schedule.enter_postproc()
        checks = []
        for postproc in design.context.space_generator.postprocs:
            good = postproc.apply(schedule)
            if not good and "VerifyGPUCode" not in str(postproc):
                return None, False
            checks.append(good)
    except Exception:  # ScheduleError, TVMError ... by what it stumbles over
        return None, False
    return schedule, all(checks)


_COPYING = (*_CUTTING, "StmtSimplify", "LowerAutoCopy")


def lowered(tvm, schedule, names):
    """The module after these passes."""
    module = schedule.mod
    for name in names:
        room = tvm.s_tir if hasattr(tvm.s_tir.transform, name) else tvm.tvm.tirx
        module = getattr(room.transform, name)()(module)
    return module


def tvm_copies(tvm, schedule):
    """As `tvm_loops` for copies that TVM lowers, by buffer; results of ``mma`` by their block."""
    out = {}
    for name, _, loops, copy in _inside(lowered(tvm, schedule, _COPYING), "mma_store".__eq__):
        if name == "mma_store":
            out[f"{copy}_store"] = loops
        elif name is None and copy is not None:
            out[copy] = loops
    return out


def permutes(tvm, schedule):
    """Whether TVM's compiler can permute the rows of shared memory where a schedule asks for it,
    and nvcc takes what it writes: an index that stays a vector of 8 integers, it does not."""
    after = ("UnifyThreadBinding", "LowerMatchBuffer", "StmtSimplify", "InjectPermutedLayout")
    try:
        module = lowered(tvm, schedule, (*_COPYING, *after, "LowerOpaqueBlock", "FlattenBuffer"))
    except Exception:
        return False
    module = tvm.tirx.transform.StmtSimplify()(tvm.tirx.transform.VectorizeLoop(True)(module))
    return "^ T.Broadcast(" not in module.script()


def waits_are_numbers(schedule, target):
    """Whether TVM's code generator can write what a program waits for."""
    try:
        compiled(schedule.mod, target)
    except Exception as error:
        return "must become compile-time constants" not in str(error)
    return True


def _mark(loop):
    if loop.thread_binding is None:
        return _KINDS.get(int(loop.kind))
    mark = str(loop.thread_binding.thread_tag)
    return "vthread" if mark.startswith("vthread") else mark


def _inside(module, is_last):
    """Names of blocks, None for stores: block, loops around it and unroll depth, copy around it."""

    def walk(stmt, path, depth, copy):
        kind, parts = type(stmt).__name__, []
        if kind == "SeqStmt":
            parts = stmt.seq
        elif kind == "For":
            depth = int(stmt.annotations.get("pragma_auto_unroll_max_step", depth))
            path, parts = [*path, (int(stmt.extent), _mark(stmt))], [stmt.body]
        elif kind in ("AttrStmt", "IfThenElse"):
            parts = [stmt.body if kind == "AttrStmt" else stmt.then_case]
        elif kind == "BufferStore":
            yield None, None, (_existing(path), depth), copy
        elif kind == "SBlockRealize":
            block, name = stmt.block, str(stmt.block.name_hint)
            yield name, block, (_existing(path), depth), copy
            parts = [] if is_last(name) else [block.body]
            copy = name if "auto_copy" in block.annotations else copy
        for part in parts:
            yield from walk(part, path, depth, copy)

    return walk(module["main"].body, [], 0, None)


def tvm_loops(schedule):
    """Loops around every block but copies: [(extent, mark)], and the unroll depth in force."""
    blocks = [one for one in _inside(schedule.mod, "root".__ne__) if one[0] not in (None, "root")]
    return {name: loops for name, one, loops, _ in blocks if "auto_copy" not in one.annotations}


def our_loops(tree, row):
    """The same from a block tree, for its candidate ``row``."""
    out = {}
    for block in tree.blocks():
        path, depth = [], 0
        for loop in tree.path(block):
            path.append((at(loop.extent, row), loop.mark))
            if loop.unroll is not None:
                depth = at(loop.unroll, row) or depth
        out[block.name] = (_existing(path), depth)
    return out


def _existing(path):
    return [(e, m) for e, m in path if e > 1 or (m is not None and ("Idx" in m or m == "vthread"))]


def tvm_buffers(tvm, schedule):
    """Shape of every buffer inside the kernel, cut to what is used."""
    copies = any(inst.kind.name in ("ReadAt", "WriteAt") for inst in schedule.trace.insts)
    module = lowered(tvm, schedule, _COPYING if copies else _CUTTING)
    blocks = [block for name, block, *_ in _inside(module, lambda _: False) if name is not None]
    buffers = [buffer for block in blocks for buffer in block.alloc_buffers]
    return {str(one.name): tuple(int(extent) for extent in one.shape) for one in buffers}


def our_buffers(tree, nests, row):
    """The same from loop nests."""
    return {
        tree.buffers[key].name: tuple(at(extent, row) for extent in allocation.extents)
        for key, allocation in nests.allocations.items()
        if not tree.buffers[key].is_param
    }


# of mma: fill, load a, load b, multiply; wmma stores, too
_TENSORIZED = {"mma": 4, "wmma": 5, "lanes": 0}


def assert_programs_are_tvms(tvm, design, space, draws):
    """Verdicts, loops, buffers and instructions of vectors; return the number of programs."""
    kind, legal, compared = kind_of(design), space.legal(draws), 0
    for rows, tree in apply_groups(space.program, draws)[0]:
        nests, unsure = lower(tree), np.broadcast_to(tree.uncertain, len(rows))
        for place, row in enumerate(rows):
            schedule, accepted = replayed(tvm, design, draws[row])
            if unsure[place] or schedule is None:
                assert not legal[row], draws[row]
                continue
            theirs = tvm_loops(schedule)
            if kind == "mma":
                accepted = accepted and permutes(tvm, schedule)
                accepted = accepted and waits_are_numbers(schedule, design.target)
                theirs |= tvm_copies(tvm, schedule)
            assert legal[row] == accepted, draws[row]
            assert our_loops(tree, place) == theirs
            ours, buffers = our_buffers(tree, nests, place), tvm_buffers(tvm, schedule)
            assert ours == {name: buffers.get(name) for name in ours}
            done = [inst.kind.name for inst in schedule.trace.insts].count("Tensorize")
            assert done == _TENSORIZED[kind]
            compared += 1
    return compared


def _unified(loops):
    """Loops of which threads of one axis are one loop, and the variables that stand for others."""
    kept, names = [], {}
    for loop in loops:
        same = next((x for x in kept if x.is_bound and x.mark == loop.mark), None)
        if same is None or loop.mark is Mark.VTHREAD:
            kept.append(loop)
        else:
            names[loop.var] = same.var
    return tuple(kept), names


def per_store_form(tree):
    """Loop nests as TVM's ``PerStoreFeature`` takes them, after the passes before its features.

    ``UnifyThreadBinding`` joins threads of one axis, ``CompactBufferAllocation`` cuts buffers to
    their used box, from whose start indices then count.
    """
    nests, places = lower(tree), buffer_scopes(tree)
    buffers = [
        replace(buffer, shape=tuple(af.plain(r.hi - r.lo + 1) for r in places[buffer.key].box))
        if buffer.key in places
        else buffer
        for buffer in nests.buffers
    ]

    def converted(store):
        loops, names = _unified(store.loops)
        slots = [renamed(slot, names) for slot in store.slots]
        of = {d: (store.buffer.key, d) for d in range(len(store.buffer.shape))}
        for load in loads(store.value):
            of |= {i.slot: (load.stage, d) for d, i in enumerate(load.indices) if type(i) is Axis}
        for slot, (key, dimension) in of.items():
            if key in places:
                slots[slot] = af.add(slots[slot], start_of(places[key].box[dimension]), -1)
        buffer, hidden = buffers[store.buffer.key], store.reduction
        reduction = None if hidden is None else converted(hidden)
        return replace(store, buffer=buffer, loops=loops, slots=tuple(slots), reduction=reduction)

    allocations = {
        key: replace(allocation, buffer=buffers[key], loops=_unified(allocation.loops)[0])
        for key, allocation in nests.allocations.items()
    }
    stores = [converted(store) for store in nests.stores]
    return replace(nests, buffers=buffers, stores=stores, allocations=allocations)


def at(value, row):
    """One candidate's number."""
    flat = np.asarray(value).reshape(-1)
    return int(flat[row if len(flat) > 1 else 0])


def accesses(row):
    """The buffers of a feature row, [B, 18]."""
    blocks = row[57:147].reshape(5, 18)
    return blocks[np.abs(blocks).sum(1) > 0]


def matched(ours, theirs):
    """``ours`` in the order of ``theirs``: the same buffers stand in other places."""
    orders = permutations(range(len(theirs)))
    best = min(orders, key=lambda o: np.abs(ours[list(o)] - theirs)[:, [0, 1, 2, 3, 4, 17]].sum())
    return ours[list(best)]
