"""MetaSchedule's postprocessors that change the program, and automatic copies.

Cooperative fetches, reductions and bound blocks follow src/s_tir/meta_schedule/postproc.
``LowerAutoCopy`` of TVM's MemHammer (src/s_tir/transform/memhammer_*.cc) gives automatic copies
(``ReadAt``, ``WriteAt``) their loops: a copy into shared memory is dealt out to all threads, in
vectors, and results of ``mma`` go out through shared memory, eight rows of every warp at a time.
"""

from __future__ import annotations

import numpy as np

from pruner.arrays import IntLike, Mask, dtype_bytes
from pruner.errors import UnsupportedProgram
from pruner.program.dag.expr import Axis, Load, replace_loads
from pruner.program.index import affine as af
from pruner.program.index.affine import LoopVar
from pruner.program.nests import (
    ACCUMULATORS,
    BLOCKS,
    DYNAMIC_SHARED,
    THREADS,
    WARP_LANES,
    Buffer,
    Mark,
    Scope,
)
from pruner.program.tir.layouts import ALIGN
from pruner.program.tir.primitives import (
    blockize,
    cache_read,
    cache_write,
    compute_at,
    decompose_reduction,
    fuse,
    is_data_parallel,
    reduces_over_threads,
    reorder,
    reverse_compute_at,
    split,
    unblockize,
)
from pruner.program.tir.regions import buffer_scopes
from pruner.program.tir.tree import Binding, Block, BlockIter, LoopNode, Tree, insert, nest
from pruner.program.tir.verify import widest_bytes

AUTO_COPY = "auto_copy"
PERMUTED = "permuted_layout"
_VECTOR_BYTES = "vector_bytes"
_SUBTILE = 8  # rows and columns of results that a warp writes with one instruction
_ROW, _ROW_OF_EVEN = 64, 32  # elements: rows that may be permuted, and those of an even number
_MAX_VECTOR_ELEMENT_BYTES = 4


def rewrite_cooperative_fetch(
    tree: Tree, fetch: Block, lanes: IntLike, threads_x: IntLike, threads_y: IntLike | None
) -> None:
    """Deal the fetch's last loop out to repeated thread loops, ``lanes`` elements each."""
    fused = tree.path(fetch)[-1]
    # Lanes that do not divide the loop would need a guard inside a vector: then none.
    lanes = af.where(np.equal(np.mod(fused.extent, lanes), 0), lanes, 1)
    # RewriteCooperativeFetch gives up vectors of 64-bit types, which VerifyGPUCode rejects.
    if widest_bytes(tree, fetch) > _MAX_VECTOR_ELEMENT_BYTES:
        lanes = 1
    threads = [threads_x] if threads_y is None else [threads_y, threads_x]
    made = split(tree, fused, [None, *threads, lanes])
    made[-1].mark = Mark.VECTORIZE
    made[-2].mark = Mark.THREAD_X
    if threads_y is not None:
        made[-3].mark = Mark.THREAD_Y


def require_bound(tree: Tree) -> None:
    """Raise `UnsupportedProgram` unless every block is under block and thread indices."""
    for block in tree.blocks():
        marks = {loop.mark for loop in tree.path(block)}
        if marks.isdisjoint(BLOCKS) or marks.isdisjoint(THREADS):
            raise UnsupportedProgram("unbound-block", block.name)


def rewrite_reduction_blocks(tree: Tree) -> None:
    """Initialise reductions before their outermost loop, unless threads reduce together."""
    for block in list(tree.blocks()):
        # A reduction across threads keeps its init: LowerCrossThreadReduction makes one of its own.
        if block.init is None or reduces_over_threads(tree, block):
            continue
        path = tree.path(block)
        reducing = tree.reducing_in(path)
        point = next((loop for loop in path if not is_data_parallel(loop, reducing)), None)
        if point is not None:
            decompose_reduction(tree, block, point)


def read_at(tree: Tree, loop: LoopNode, block: Block, read_index: int, scope: str) -> Block:
    """Copy an input of ``block`` to ``scope``, under ``loop``."""
    copy = cache_read(tree, block, read_index, scope, [])
    compute_at(tree, copy, loop)
    return _opaque(tree, copy)


def write_at(tree: Tree, loop: LoopNode, block: Block, scope: str) -> Block:
    """Write ``block`` to ``scope``, copied out at the end of ``loop``."""
    copy = cache_write(tree, block, scope)
    reverse_compute_at(tree, copy, loop)
    return _opaque(tree, copy)


def _opaque(tree: Tree, copy: Block) -> Block:
    """Move a copy's loops inside its block, opaque to later instructions."""
    count, name = len(copy.iters), copy.name
    # Only the copy's own loops, one an iterator: blockize keeps the outer loops of `compute_at`.
    blockize(tree.path(copy)[-count])
    copy.name = name
    copy.annotations[AUTO_COPY] = 1
    return copy


def lower_auto_copies(tree: Tree) -> None:
    """Give every automatic copy its loops; raise `UnsupportedProgram` for other memories."""
    for block in list(tree.blocks()):
        if AUTO_COPY not in block.annotations:
            continue
        threads = next((x for x in tree.path(block) if x.mark is Mark.THREAD_Y), None)
        if threads is None:
            raise UnsupportedProgram("auto-copy", f"{block.name} is under no warps")
        loops = unblockize(block)
        if tree.buffers[block.buffer].scope is Scope.SHARED:
            _deal_out(tree, block, loops, threads.extent)
        else:
            _write_out(tree, block, loops, threads)


def _deal_out(tree: Tree, block: Block, loops: list[LoopNode], warps: IntLike) -> None:
    """Deal consecutive vectors out to consecutive threads."""
    # Rows of the copy have no gaps here (see the module), whatever ``storage_align`` set.
    block.annotations.pop(ALIGN, None)
    # The annotation has bytes; a fetch is dealt out in elements.
    wanted = int(str(block.annotations.get(_VECTOR_BYTES, 1)))
    lanes = max(1, wanted // dtype_bytes(tree.buffers[block.buffer].dtype))
    fuse(tree, loops)
    rewrite_cooperative_fetch(tree, block, lanes, WARP_LANES, warps)


def _write_out(tree: Tree, block: Block, loops: list[LoopNode], warps: LoopNode) -> None:
    """Write eight rows of each warp to shared, then to global memory."""
    source = next((k for k in block.loads if tree.buffers[k].scope in ACCUMULATORS), None)
    if source is None or len(loops) != 2 or len(block.loads_of(source)) != 1:
        raise UnsupportedProgram("auto-copy", block.name)
    # A warp writes 8 x 8 results with one instruction.
    row, rows = split(tree, loops[0], [None, _SUBTILE])
    column, columns = split(tree, loops[1], [None, _SUBTILE])
    reorder(tree, [row, column, rows, columns])
    # The staging buffer holds one step of all warps, indexed by warp, column, row.
    tile = [warps.var, column.var, rows.var, columns.var]
    name = f"{tree.buffers[source].name}_{DYNAMIC_SHARED}"
    staging = tree.new_buffer(name, tree.buffers[source], DYNAMIC_SHARED)
    staging.shape = tuple(var.extent for var in tile)
    out = _copied_out(block, source, staging, tile)
    load = block.loads_of(source)[0]
    block.value, block.init, block.guards = load, None, ()
    block.name = f"{block.name}_store"
    block.buffer, block.indices = staging.key, _follow(block, tile)
    block.list_reads()
    blockize(rows).name = block.name.removesuffix("_o")
    copying = [LoopNode(LoopVar(f"{var.name}_cache", var.extent)) for var in tile]
    names = dict(zip(tile, (node.var for node in copying), strict=True))
    out.bindings = [tree.rebound(b, tree.uses(out, n), names) for n, b in enumerate(out.bindings)]
    insert(row, len(row.body), nest(copying, [out]))
    fused = fuse(tree, copying)
    # The copy out uses all threads in order, whatever warp made the element.
    made = split(tree, fused, [None, warps.extent, WARP_LANES])
    made[1].mark, made[2].mark = Mark.THREAD_Y, Mark.THREAD_X


def _follow(block: Block, tile: list[LoopVar]) -> tuple[Axis, ...]:
    """Add an iterator per loop to the block; return them as indices."""
    first = len(block.iters)
    block.iters += tuple(BlockIter("spatial", var.extent) for var in tile)
    block.bindings = [*block.bindings, *map(Binding.of, tile)]
    return tuple(Axis(first + place) for place in range(len(tile)))


def _copied_out(block: Block, source: int, staging: Buffer, tile: list[LoopVar]) -> Block:
    """Return a block writing the same elements, read from the staging buffer."""
    out = Block(
        name=block.name,
        iters=block.iters,
        bindings=list(block.bindings),
        buffer=block.buffer,
        indices=block.indices,
        value=block.value,
        guards=block.guards,
    )
    indices = _follow(out, tile)
    out.value = replace_loads(
        out.value, source, lambda load: Load(staging.key, indices, load.dtype)
    )
    out.list_reads()
    return out


def layouts_permute(tree: Tree) -> Mask:
    """Return where TVM can permute rows of all permuted copies, [N].

    Else ``InjectPermutedLayout`` stops the compiler after every check; and where the columns are no
    power of two, nvcc does not take the vector of 8 integers that TVM writes.
    """
    out = np.ones(tree.num_programs, bool)
    for block in tree.blocks():
        if PERMUTED not in block.annotations or AUTO_COPY not in block.annotations:
            continue
        box = buffer_scopes(tree)[block.buffer].box
        rows, columns = (af.plain(region.hi - region.lo + 1) for region in box[-2:])
        even = np.equal(np.mod(columns, _ROW_OF_EVEN), 0) & np.equal(np.mod(rows, 2), 0)
        # InjectPermutedLayout takes rows of 64 elements, or pairs of rows of 32.
        out &= np.equal(np.mod(columns, _ROW), 0) | even
        out &= np.equal(np.bitwise_and(columns, columns - 1), 0)
    return out
