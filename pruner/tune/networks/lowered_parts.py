"""What lowerings have made before: equal calls and equal functions are not lowered anew.

Networks of a search space repeat the layers of each other. What TVM makes of a call of an operator,
and what the steps behind the fusion make of a function, are kept by structure: by the operator, its
attributes and the kinds of its arguments, and by the structural hash of TVM, by which tasks are
found. Names do not count: tensors and blocks may have the names of an earlier network.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache, partial
from math import prod
from typing import Any

from pruner.tune.tvm_import import load_tvm

_MOST = 20_000  # of kept results, each some kilobytes
_FEW = 16  # elements of a constant whose values may decide how a call is lowered
_Made = Callable[[Any, list[Any]], Any]  # makes the call of a function from builder and tensors


class _Unknown(Exception):
    """An argument whose description would not be complete."""


class LoweredParts:
    """Results of lowerings, all for the same target."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, _Made | None] = {}
        self._functions: dict[Hashable, Any] = {}

    def legalize(self) -> Any:
        """Return TVM's pass ``LegalizeOps`` that takes known functions."""
        if len(self._calls) + len(self._functions) > _MOST:
            self._calls.clear()
            self._functions.clear()
        wrapped = {
            name: partial(self._legal, name, default) for name, default in _legalizers().items()
        }
        return load_tvm().relax.transform.LegalizeOps(wrapped)

    def of(
        self, step: str, function: Any, make: Callable[[Any], Any], about: Hashable = None
    ) -> Any:
        """Return what a step makes of a function and of `about` alone."""
        key = step, load_tvm().ffi.structural_hash(function), about
        if key not in self._functions:
            self._functions[key] = make(function)
        return self._functions[key]

    def _legal(self, name: str, default: Callable[..., Any], builder: Any, call: Any) -> Any:
        tensors: list[Any] = []
        try:
            key = (name, *_described(call, tensors))
        except _Unknown:
            return default(builder, call)
        if key not in self._calls:
            self._calls[key] = _learned(default, call, tensors)
        kept = self._calls[key]
        return default(builder, call) if kept is None else kept(builder, tensors)


@cache
def _legalizers() -> dict[str, Any]:
    """Return TVM's functions that lower operators of Relax, by the operators' names."""
    kind, attribute = load_tvm().tvm.ir.Op, "FLegalize"
    assert load_tvm().relax  # its import registers them
    operators = {str(name): kind.get(name) for name in kind.list_op_names()}
    return {
        name: operator.get_attr(attribute)
        for name, operator in operators.items()
        if name.startswith("relax.") and operator.get_attr(attribute) is not None
    }


def _learned(default: Callable[..., Any], call: Any, tensors: list[Any]) -> _Made | None:
    """Lower a call by itself; None unless it becomes a call of a function."""
    relax = load_tvm().relax
    alone = relax.BlockBuilder()
    try:
        made = default(alone, call)
        functions = list(alone.get().functions_items())
        arguments = list(made.args[1].fields)
    except Exception:  # of TVM's kinds; calls of other operators have no fields
        return None
    is_call = str(getattr(made.op, "name", "")) == "relax.call_tir" and len(made.args) == 2
    if not is_call or len(functions) != 1:
        return None
    ((variable, function),) = functions
    places = [_place(one, tensors) for one in arguments]
    if not variable.same_as(made.args[0]) or None in places:
        return None

    # kept without the call, whose constants may be large
    name, operator, attributes, types = variable.name_hint, made.op, made.attrs, made.ty_args

    def call_of(builder: Any, others: list[Any]) -> Any:
        taken = relax.Tuple([others[place] for place in places if place is not None])
        known = builder.add_func(function, str(name))
        return relax.Call(operator, [known, taken], attributes, types)

    return call_of


def _place(value: Any, tensors: list[Any]) -> int | None:
    return next((place for place, one in enumerate(tensors) if one.same_as(value)), None)


def _described(call: Any, tensors: list[Any]) -> tuple[Hashable, ...]:
    """Describe a call by what may decide its lowering; list its tensors."""
    if len(call.ty_args or ()):
        raise _Unknown
    attributes = None if call.attrs is None else load_tvm().ffi.structural_hash(call.attrs)
    arguments = tuple(_argument(one, tensors) for one in call.args)
    return attributes, arguments, None if call.ty is None else _type(call.ty)


def _argument(value: Any, tensors: list[Any]) -> Hashable:
    tvm, relax, tirx = load_tvm().tvm, load_tvm().relax, load_tvm().tirx
    if isinstance(value, relax.Tuple):
        return "tuple", *(_argument(one, tensors) for one in value.fields)
    if isinstance(value, relax.ShapeExpr):
        return "shape", *map(_size, value.values)
    if isinstance(value, tirx.IntImm | tirx.FloatImm):
        return "number", str(value.ty.dtype), repr(value.value)  # 0.0 and -0.0 are equal
    is_constant = isinstance(value, tvm.ir.GenericConst)
    if not is_constant and not isinstance(value, relax.Var):
        raise _Unknown
    kind = _type(value.ty)
    if not isinstance(value.ty, relax.TensorType):
        raise _Unknown  # a tuple's tensors are taken out of it by further calls
    place = _place(value, tensors)
    if place is None:  # equal tensors are told from different ones of the same shape
        place = len(tensors)
        tensors.append(value)
    is_read = is_constant and prod(kind[1]) <= _FEW
    return kind, place, value.value.numpy().tobytes() if is_read else is_constant


def _type(ty: Any) -> tuple[Any, ...]:
    """Describe the type of a tensor or of several."""
    relax = load_tvm().relax
    if isinstance(ty, relax.TupleType):
        return "tuple", *(_type(one) for one in ty.fields)
    if not isinstance(ty, relax.TensorType) or ty.dtype is None or ty.vdevice is not None:
        raise _Unknown
    if not isinstance(ty.shape, relax.ShapeExpr):
        raise _Unknown
    return "tensor", tuple(map(_size, ty.shape.values)), str(ty.dtype.dtype)


def _size(value: Any) -> int:
    if not isinstance(value, load_tvm().tirx.IntImm):
        raise _Unknown  # an open size
    return int(value.value)
