"""Inlining: bodies after every compute_inline (TE's ``InjectInline``, feature-extraction mode)."""

from __future__ import annotations

from pruner.program.dag.expr import Const, Expr, Load, rewrite
from pruner.program.te.schedule import Schedule, substitute_axes


def inline_bodies(schedule: Schedule) -> dict[int, Expr]:
    """Body of every computed stage that remains, by key, with inlined stages substituted.

    Winograd's constant matrices become the constant 1, as the original does for features.
    """
    inlined = {s.key: s for s in schedule.pool if s.attach == "inline" and s.body is not None}

    def rule(node: Expr) -> Expr:
        if not isinstance(node, Load) or node.stage not in inlined:
            return node
        stage = inlined[node.stage]
        if stage.const_matrix:
            return Const(1.0, stage.dtype)
        assert stage.body is not None
        return rewrite(substitute_axes(stage.body, node.indices), rule)

    return {
        s.key: rewrite(s.body, rule)
        for s in schedule.pool
        if s.body is not None and s.key not in inlined
    }
