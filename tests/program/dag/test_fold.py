"""Constant folding of bodies."""

from pruner.program.dag.expr import Axis, Binary, Call, Cast, Const, Load, Select, fold

X = Load(0, (Axis(0),), "float32")
ONE, ZERO = Const(1.0, "float32"), Const(0.0, "float32")


def real(op, a, b):
    return Binary(op, a, b, "float32")


def whole(op, a, b):
    return Binary(op, a, b, "int32")


def test_neutral_operands_vanish():
    assert fold(real("mul", X, ONE)) == X
    assert fold(real("mul", real("mul", ONE, X), ONE)) == X
    assert fold(real("add", ZERO, X)) == X
    assert fold(real("sub", X, ZERO)) == X
    assert fold(real("div", X, ONE)) == X


def test_a_product_with_zero_is_zero():
    assert fold(real("mul", X, ZERO)) == ZERO


def test_what_is_not_neutral_stays():
    for expr in (real("sub", ZERO, X), real("div", ONE, X), real("max", X, ZERO)):
        assert fold(expr) == expr


def test_the_divisor_of_an_adaptive_pool_is_a_number():
    # the width (i + 1) * 14 - i * 14, with a choice that is always the same
    upper = whole("mul", whole("add", Axis(0), Const(1)), Const(14))
    chosen = Select(Const(1, "bool"), upper, whole("add", upper, Const(1)), "int32")
    width = Cast(whole("sub", chosen, whole("mul", Axis(0), Const(14))), "float32")
    assert fold(real("mul", width, width)) == Const(196.0, "float32")


def test_a_literal_takes_the_type_of_its_cast():
    half = Const(0.5, "float32")
    for dtype, value in (("float16", 0.5), ("bfloat16", 0.5), ("int8", 0)):
        assert fold(Cast(half, dtype)) == Const(value, dtype)


def test_a_lazy_choice_with_a_literal_condition():
    assert fold(Call("if_then_else", (Const(0, "bool"), X, ZERO), "float32")) == ZERO


def test_an_index_that_still_moves_is_kept():
    index = whole("add", Axis(0), Const(0))
    assert fold(index) == index
