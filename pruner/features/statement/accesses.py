"""List a store's buffers with their simplified index expressions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pruner.program.dag.expr import Expr, Load, children
from pruner.program.index.affine import Affine
from pruner.program.nests import Buffer, BufferStore

READ, WRITE, READ_WRITE = 0, 1, 2
Buffers = Sequence[Buffer] | Mapping[int, Buffer]  # by key


@dataclass(slots=True, eq=False)
class Access:
    """All touches of one buffer by one store.

    ``indices``: one tuple of index expressions (one per dimension) for each touch that counts; a
    buffer that is both written and read is an update, whose read has the store's own indices.
    """

    buffer: Buffer
    kind: int
    indices: list[tuple[Affine, ...]] = field(default_factory=list)


def load_indices(load: Load, store: BufferStore) -> tuple[Affine, ...]:
    """Return indices of a load in a store; updates read their own element."""
    if load.stage == store.buffer.key and not load.indices:
        return store.indices
    return tuple(map(store.sum_of, load.indices))


def _loads_in_visit_order(expr: Expr) -> Iterator[Load]:
    """Yield a load before the loads in its indices, as feature.cc visits."""
    if isinstance(expr, Load):
        yield expr
    for child in children(expr):
        yield from _loads_in_visit_order(child)


def store_accesses(buffers: Buffers, store: BufferStore) -> list[Access]:
    """Return a store's buffers by first touch: the written buffer, then the reads."""
    written = Access(store.buffer, WRITE, [store.indices])
    found: dict[int, Access] = {store.buffer.key: written}
    for load in _loads_in_visit_order(store.value):
        access = found.setdefault(load.stage, Access(buffers[load.stage], READ))
        # feature.cc (BufferAccessExtractor): a read of the written buffer turns it into an update,
        # whose read adds no indices.
        if access.kind == WRITE:
            access.kind = READ_WRITE
        if access.kind != READ_WRITE:
            access.indices.append(load_indices(load, store))
    return list(found.values())
