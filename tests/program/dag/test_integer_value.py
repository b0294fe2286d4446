"""Values of integer expressions against Python's own arithmetic."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pruner.errors import UnsupportedProgram
from pruner.program.dag.expr import Axis, Binary, Call, Cast, Const, Load, Not, Select
from pruner.program.dag.tenset import constant_value, integer_value


@given(st.integers(-50, 50), st.integers(-50, 50).filter(bool))
def test_divisions_truncate_or_floor(a: int, b: int) -> None:
    def value(op: str) -> int:
        return integer_value(Binary(op, Axis(0), Axis(1), "int32"), (a, b))  # type: ignore[arg-type]

    assert value("div") == math.trunc(a / b)
    assert value("mod") == math.fmod(a, b)
    assert value("floordiv") == math.floor(a / b)
    assert value("floormod") == a - b * math.floor(a / b)


def test_conditions_choose() -> None:
    below = Binary("lt", Axis(0), Const(3), "bool")
    chosen = Select(below, Const(10), Const(20), "int32")
    assert [integer_value(chosen, (i,)) for i in (2, 3)] == [10, 20]
    lazy = Call("if_then_else", (Not(below), Const(10), Cast(Axis(0), "int64")), "int32")
    assert [integer_value(lazy, (i,)) for i in (2, 3)] == [2, 10]


def test_constant_only_if_the_same_in_every_iteration() -> None:
    twice = Binary("mul", Axis(1), Const(2), "int32")
    same = Binary("sub", Binary("add", twice, Const(5), "int32"), twice, "int32")
    assert constant_value(same, (1000, 50, 1000)) == 5
    assert constant_value(twice, (1, 2)) is None
    assert constant_value(twice, (9, 1)) == 0
    assert constant_value(same, (1, 10**6)) is None  # too many to try


def test_floats_and_loads_are_refused() -> None:
    for expr in (Const(1.5, "float32"), Load(0, (), "int32"), Cast(Const(1), "float32")):
        with pytest.raises(UnsupportedProgram, match="not-an-integer"):
            integer_value(expr, ())
