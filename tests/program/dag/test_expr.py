"""Walks and rewrites of expressions."""

from pruner.program.dag.expr import (
    Axis,
    Binary,
    Call,
    Cast,
    Const,
    Load,
    Not,
    Select,
    children,
    loads,
    rebuild,
    redirect_loads,
    rewrite,
    substitute_axes,
    walk,
)

A, B = Axis(0), Axis(1)
LESS = Binary("lt", A, B, "bool")
INNER = Load(3, (A,), "int32")
NODES = [
    Const(1),
    A,
    Binary("sub", A, B, "int64"),
    Not(LESS),
    Select(LESS, Const(1.0, "float32"), Const(2.0, "float32"), "float32"),
    Call("exp", (Load(0, (A, B), "float32"),), "float32", pure=False),
    Cast(A, "float16"),
    Load(2, (INNER, B), "float16"),
]


def test_a_node_put_together_from_its_operands_is_the_same():
    for node in NODES:
        assert rebuild(node, children(node)) == node
        assert rewrite(node, lambda n: n) is node  # nothing is copied without need


def test_operands_come_before_their_user():
    tree = Select(LESS, Cast(INNER, "float32"), Const(0.0, "float32"), "float32")
    order = list(walk(tree))
    assert order == [A, B, LESS, A, INNER, Cast(INNER, "float32"), Const(0.0, "float32"), tree]


def test_loads_inside_indices_are_found_first():
    assert loads(Binary("add", NODES[-1], Load(1, (B,), "float16"), "float16")) == [
        INNER,
        NODES[-1],
        Load(1, (B,), "float16"),
    ]


def test_redirected_loads_keep_indices_and_type_also_inside_indices():
    body = Load(3, (Load(3, (A,), "int32"), Load(4, (B,), "int32")), "float32")
    assert redirect_loads(body, 3, 9) == Load(
        9, (Load(9, (A,), "int32"), Load(4, (B,), "int32")), "float32"
    )


def test_axes_are_replaced_all_at_once():
    """Swapping two axes does not replace one of them twice."""
    body = Binary("sub", A, Binary("mul", B, Const(4), "int32"), "int32")
    assert substitute_axes(body, (B, A)) == Binary(
        "sub", B, Binary("mul", A, Const(4), "int32"), "int32"
    )
