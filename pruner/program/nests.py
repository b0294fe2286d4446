"""Loop nests: scheduled programs as stores under loops, N at once.

Extents are plain integers or int64 [N]. A loop of extent 1 is *absent* where lowering removes it;
loops bound to GPU indices stay.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Literal

from pruner.arrays import IntLike, dtype_bytes
from pruner.errors import UnsupportedProgram
from pruner.program.dag.expr import Expr
from pruner.program.index.affine import Affine, LoopVar, Truth
from pruner.program.index.regions import evaluate_index

LoopKind = Literal["spatial", "reduce"]
StoreKind = Literal["init", "update", "plain", "allreduce"]


class Scope(IntEnum):
    """Storage scope of a buffer, numbered by TVM's ranks (thread_storage_scope.h).

    Fragments are registers of a warp for tensor cores: of ``wmma`` or of ``mma`` (``MMA_*``).
    """

    GLOBAL = 0
    SHARED = 1
    LOCAL = 3
    FRAGMENT_A = 4
    FRAGMENT_B = 5
    ACCUMULATOR = 6
    MMA_A = 9
    MMA_B = 10
    MMA_C = 11

    @staticmethod
    def of(name: str) -> Scope:
        """Return the scope that TVM calls ``name``; raise `UnsupportedProgram` without a rank."""
        scope = _SCOPES.get(name)
        if scope is None:
            raise UnsupportedProgram("storage-scope", name)
        return scope


# Dynamic shared memory has the rank of shared memory (see `Buffer.is_dynamic`).
GLOBAL, SHARED, LOCAL = Scope.GLOBAL, Scope.SHARED, Scope.LOCAL
DYNAMIC_SHARED = "shared.dyn"
_SCOPES = {
    "global": GLOBAL,
    "shared": SHARED,
    DYNAMIC_SHARED: SHARED,
    "local": LOCAL,
    "wmma.matrix_a": Scope.FRAGMENT_A,
    "wmma.matrix_b": Scope.FRAGMENT_B,
    "wmma.accumulator": Scope.ACCUMULATOR,
    "m16n8k8.matrixA": Scope.MMA_A,
    "m16n8k8.matrixB": Scope.MMA_B,
    "m16n8k8.matrixC": Scope.MMA_C,
}
OPERAND_FRAGMENTS = (Scope.FRAGMENT_A, Scope.FRAGMENT_B, Scope.MMA_A, Scope.MMA_B)
ACCUMULATORS = (Scope.ACCUMULATOR, Scope.MMA_C)


class Mark(StrEnum):
    """Annotation of a loop, by TVM's name; ``TENSORIZE``: inside a tensor core's instruction."""

    UNROLL = "unroll"
    VECTORIZE = "vectorize"
    PARALLEL = "parallel"
    TENSORIZE = "tensorize"
    VTHREAD = "vthread"
    BLOCK_X = "blockIdx.x"
    BLOCK_Y = "blockIdx.y"
    BLOCK_Z = "blockIdx.z"
    THREAD_X = "threadIdx.x"
    THREAD_Y = "threadIdx.y"
    THREAD_Z = "threadIdx.z"

    @staticmethod
    def of_axis(axis: str) -> Mark:
        """Return the mark of a thread axis; raise `UnsupportedProgram` (``thread-axis``)."""
        name = "vthread" if axis.startswith("vthread") else axis
        if name not in _BOUND:
            raise UnsupportedProgram("thread-axis", axis)
        return Mark(name)


BLOCKS = (Mark.BLOCK_X, Mark.BLOCK_Y, Mark.BLOCK_Z)
WARP_LANES = 32  # that run one instruction of a tensor core: thread_warp_size of CUDA's targets
THREADS = (Mark.THREAD_X, Mark.THREAD_Y, Mark.THREAD_Z)
_BOUND = {*BLOCKS, *THREADS, Mark.VTHREAD}


def is_bound(mark: Mark | None) -> bool:
    """Return whether the mark is a GPU index: block, (virtual) thread."""
    return mark in _BOUND


def thread_rank(mark: Mark | None) -> int | None:
    """Return 0 for block indices, 1 for (virtual) threads, else None (``ThreadScope``)."""
    return 0 if mark in BLOCKS else 1 if mark in _BOUND else None


@dataclass(eq=False, slots=True)
class Buffer:
    """An array: ``key`` is its number in loads, ``is_param`` marks kernel arguments.

    ``shape``: elements per dimension, each an int or int64 [N]; ``is_dynamic``: a part of the one
    dynamic allocation of shared memory that a kernel has.
    """

    key: int
    name: str
    dtype: str
    shape: tuple[IntLike, ...]
    scope: Scope = Scope.GLOBAL
    is_param: bool = False
    is_dynamic: bool = False

    @property
    def bytes_per_element(self) -> int:
        """Size of one element."""
        return dtype_bytes(self.dtype)


@dataclass(eq=False, slots=True)
class Loop:
    """One loop around stores; ``kind``: for all reductions inside, None without any."""

    var: LoopVar
    extent: IntLike
    mark: Mark | None
    kind: LoopKind | None

    @property
    def is_bound(self) -> bool:
        """True for a loop bound to a block or (virtual) thread."""
        return self.mark in _BOUND

    @property
    def present(self) -> Truth:
        """Programs in which the loop survives lowering: a bool, or bool [N]."""
        # TVM removes a loop of one iteration (Simplify), but a thread_extent attribute stays.
        return True if self.is_bound else self.extent != 1


@dataclass(eq=False, slots=True)
class BufferStore:
    """One store: ``buffer[indices] = value`` under ``loops`` (outermost first).

    ``slots``: values of the axis slots in ``value``, first the store's own indices; ``unroll``:
    depth of the pragma in force, 0 if none; ``reduction``: of the call of a reduction over threads
    (kind ``allreduce``), the update that it stands for.
    """

    buffer: Buffer
    kind: StoreKind
    value: Expr
    loops: tuple[Loop, ...]
    slots: tuple[Affine, ...]
    unroll: IntLike
    reduction: BufferStore | None = None
    _sums: dict[int, Affine] = field(default_factory=dict, init=False, repr=False)

    def sum_of(self, index: Expr) -> Affine:
        """Return an index expression of ``value``, simplified; computed once."""
        # By identity: expressions are shared between stores of a stage, and hashing one walks it.
        if id(index) not in self._sums:
            self._sums[id(index)] = evaluate_index(index, dict(enumerate(self.slots)))
        return self._sums[id(index)]

    @property
    def indices(self) -> tuple[Affine, ...]:
        """Simplified indices of the element written, one per dimension of the buffer."""
        return self.slots[: len(self.buffer.shape)]


@dataclass(eq=False, slots=True)
class Allocation:
    """Memory of a computed buffer: the loops around it, elements per dimension."""

    buffer: Buffer
    loops: tuple[Loop, ...]
    extents: tuple[IntLike, ...]


@dataclass(eq=False, slots=True)
class LoopNests:
    """Loop nests of N programs of one structure.

    ``stores`` in program order; ``allocations`` of the computed buffers by key; ``resolved``: every
    buffer has a number as size (TVM fails else); ``shared_bytes`` of a block, where it is no sum of
    allocations; ``copies_ahead``: iterations by which a software pipeline copies ahead, else 0.
    """

    num_programs: int
    buffers: list[Buffer]
    stores: list[BufferStore] = field(default_factory=list)
    allocations: dict[int, Allocation] = field(default_factory=dict)
    resolved: Truth = True
    shared_bytes: IntLike | None = None
    copies_ahead: int = 0
