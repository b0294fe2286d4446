"""Constructors fold what TVM's operators fold, nothing else, and never change a value."""

import itertools

import numpy as np
import pytest

from pruner.program.dag import expr
from pruner.program.dag.expr import Axis, Binary, Const
from tests.program.dag_values import value_of

X = Axis(0)
ARITHMETIC = {
    "add": (expr.add, lambda a, b: a + b),
    "sub": (expr.sub, lambda a, b: a - b),
    "mul": (expr.mul, lambda a, b: a * b),
    "div": (expr.div, lambda a, b: a / b),
    "max": (expr.maximum, max),
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_the_value_is_that_of_the_operator(name):
    make, operator = ARITHMETIC[name]
    for constant, x in itertools.product((-2, 0, 1, 3), (1, 2, 5)):
        for left in (True, False):
            if name == "div" and not left and not constant:
                continue
            a, b = (Const(constant), X) if left else (X, Const(constant))
            wanted = operator(*((constant, x) if left else (x, constant)))
            assert value_of(make(a, b), [x], []) == wanted, (a, b)


def test_neutral_operands_vanish_and_others_stay():
    zero, one = expr.int_(0), expr.int_(1)
    assert expr.add(X, zero) is expr.add(zero, X) is expr.sub(X, zero) is X
    assert expr.mul(X, one) is expr.mul(one, X) is expr.div(X, one) is X
    # TVM keeps these: 0 - x, 1 / x and x * 0 are operations
    assert expr.sub(zero, X) == Binary("sub", zero, X, "int32")
    assert expr.div(one, X) == Binary("div", one, X, "int32")
    assert expr.mul(X, zero) == Binary("mul", X, zero, "int32")


def test_the_smallest_float_is_a_float32():
    assert np.float32(expr.FLOAT32_MIN) == np.finfo(np.float32).min


def test_axes_are_numbered_from_the_start():
    assert [axis.slot for axis in expr.axes(3, start=2)] == [2, 3, 4]
