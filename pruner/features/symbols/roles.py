"""What one statement does: its operations, and its loops by role."""

from __future__ import annotations

from dataclasses import dataclass

from pruner.features.symbols.closed.tiling_index import Statement, TiledLoop
from pruner.program.dag.expr import Binary, Call, Expr, Load, children


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations of one iteration: ``flops`` (with min and max), ``special`` function calls."""

    flops: float
    special: float


def count_operations(value: Expr, *, accumulates: bool = False) -> Operations:
    """Floating-point work of a value, one more where it ``accumulates``.

    Index arithmetic inside loads does not count.
    """
    flops = special = 0.0
    pending = [value]
    while pending:
        node = pending.pop()
        if isinstance(node, Load) or node.dtype == "bool":
            continue
        if isinstance(node, Binary) and node.dtype.startswith("float"):
            flops += 1
        if isinstance(node, Call) and node.name != "if_then_else":
            special += 1
        pending.extend(children(node))
    return Operations(flops + accumulates, special)


class StatementLoops:
    """The loops around one statement by role, and products over them."""

    def __init__(self, statement: Statement) -> None:
        self.all = statement.loops
        bound = {loop.is_own for loop in self.all if self._is_thread(loop)}
        fetches = bound == {True, False}  # own threads inside a block's: a cooperative fetch
        self.blocks = self._of("blockIdx")
        threads = self._of("threadIdx")
        self.threads = [x for x in threads if x.is_own or not fetches]
        # A block fetches once for all virtual threads: their loop does not repeat the statement.
        self.vthreads = [] if fetches else [x for x in self.all if x.mark == "vthread"]
        self.serial = [x for x in self.all if not self._is_bound(x)]
        self.path = [x for x in self.serial if not x.is_own]
        self.own = [x for x in self.serial if x.is_own]

    @staticmethod
    def _is_thread(loop: TiledLoop) -> bool:
        return loop.mark is not None and loop.mark.startswith("threadIdx")

    @staticmethod
    def _is_bound(loop: TiledLoop) -> bool:
        return loop.mark is not None and (loop.mark == "vthread" or "Idx" in loop.mark)

    def _of(self, prefix: str) -> list[TiledLoop]:
        return [x for x in self.all if x.mark is not None and x.mark.startswith(prefix)]

    @property
    def in_thread(self) -> list[TiledLoop]:
        """Loops that one thread runs, virtual threads first."""
        return [*self.vthreads, *self.serial]
