"""Number the stages of a compute DAG in Ansor's order.

Two orders are involved. A topological order with priorities finds the outputs (its only effect is
the order among several outputs); the stages are then numbered by a depth-first walk from the
outputs, inputs before their user, in the order of the loads in its expression. Source:
``TopoSortOps`` of Ansor and ``Schedule`` of TE.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence


def schedule_order(
    reads: Sequence[Sequence[int]], tensors: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the operations in stage order, and the outputs among them.

    ``reads[i]`` are the operations that operation ``i`` reads, each once, in the order of its
    expression; ``tensors`` are the operations named when the DAG was made (inputs and outputs).
    """
    read = {source for sources in reads for source in sources}
    outputs = [op for op in _priority_order(reads, tensors) if op not in read]
    order: list[int] = []
    visited: set[int] = set()
    for output in outputs:
        _visit(output, reads, visited, order)
    return order, outputs


def _visit(op: int, reads: Sequence[Sequence[int]], visited: set[int], order: list[int]) -> None:
    if op in visited:
        return
    visited.add(op)
    for source in reads[op]:
        _visit(source, reads, visited, order)
    order.append(op)


def _priority_order(reads: Sequence[Sequence[int]], tensors: Sequence[int]) -> list[int]:
    """Return a topological order; the ready operation found last goes first."""
    priority: dict[int, int] = {}
    users: defaultdict[int, list[int]] = defaultdict(list)
    stack = list(tensors)
    # A stack, not a queue: discovery order is Ansor's, and it sets the priorities.
    while stack:
        op = stack.pop()
        if op in priority:
            continue
        priority[op] = len(priority)
        for source in reads[op]:
            users[source].append(op)
            stack.append(source)
    missing = {op: len(reads[op]) for op in priority}
    # A negated priority makes Python's smallest-first heap a largest-first heap, as C++'s
    # priority_queue in TopoSortOps.
    ready = [(-priority[op], op) for op, count in missing.items() if count == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, op = heapq.heappop(ready)
        order.append(op)
        for user in users[op]:
            missing[user] -= 1
            if missing[user] == 0:
                heapq.heappush(ready, (-priority[user], user))
    return order
