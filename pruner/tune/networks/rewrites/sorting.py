"""Sort without the runtime's functions, which TVM's runtime alone has not.

TVM calls ``tvm.contrib.sort`` of ``libtvm_runtime_extra``, which is not loaded with
``TVM_USE_RUNTIME_LIB=1``. Here a function merges rows of places bottom up, in n log n steps and
with equal values in their order; ``sort`` and ``topk`` gather the values behind it. A NaN counts as
the largest value, as in torch.
"""

import importlib
from math import prod
from typing import Any

from pruner.tune.networks.rewrites.operators import operators_of, shape_of
from pruner.tune.tvm_import import load_tvm

# LLVM unrolls a row of five and takes two 32-bit places in a register for an address (haswell)
_INDEX = "int64"
_OPERATORS = ("relax.sort", "relax.argsort", "relax.topk")


def merged_sorts(module: Any) -> Any:
    """Replace ``sort``, ``argsort`` and ``topk`` in a Relax module by own functions."""
    if operators_of(module).isdisjoint(_OPERATORS):
        return module
    relax = load_tvm().relax
    dpl, op, builder = relax.dpl, relax.op, relax.BlockBuilder(module)

    def order(data: Any, axis: int, descending: bool) -> Any:
        """Make the calls that compute the sorted order along an axis."""
        shape = shape_of(data)
        count, rows = shape[axis], prod(shape) // shape[axis]
        # the axis changes places with the last one
        axes = list(range(len(shape)))
        axes[axis], axes[-1] = axes[-1], axes[axis]
        turned = data if axis == len(shape) - 1 else op.permute_dims(data, axes)
        given, dtype = op.reshape(turned, [rows, count]), str(data.ty.dtype)
        if dtype == "bool":  # LLVM compares no truth values
            given, dtype = op.astype(given, "int8"), "int8"
        merge = builder.add_func(_merge(rows, count, dtype, descending), "order")
        # the order, and scratch
        kinds = [relax.TensorType([rows, size], _INDEX) for size in (count, count, 2)]
        found = relax.TupleGetItem(relax.call_tir(merge, [given], kinds), 0)
        found = op.reshape(found, [shape[place] for place in axes])
        return found if axis == len(shape) - 1 else op.permute_dims(found, axes)

    def rewrite(_: Any, found: Any) -> Any:
        call = next(found[one] for one in patterns if one in found)
        attrs, (data,), name = call.attrs, call.args, call.op.name
        axis = int(attrs.axis) % len(data.ty.shape)
        whole = order(data, axis, bool(attrs.largest if "topk" in name else attrs.descending))
        if name == "relax.sort":
            return op.gather_elements(data, whole, axis)
        if name == "relax.argsort":
            return op.astype(whole, attrs.dtype)
        number = int(attrs.k) if int(attrs.k) >= 1 else shape_of(data)[axis]
        first = op.strided_slice(whole, [axis], [0], [number])
        indices, values = op.astype(first, attrs.dtype), op.gather_elements(data, first, axis)
        return {"both": relax.Tuple([values, indices]), "values": values, "indices": indices}[
            attrs.ret_type
        ]

    patterns = [dpl.is_op(name)(dpl.wildcard()) for name in _OPERATORS]
    main = dpl.rewrite_call(patterns[0] | patterns[1] | patterns[2], rewrite, module["main"])
    module = builder.get()
    module["main"] = main
    return relax.transform.Normalize()(module)


def _merge(rows: int, count: int, dtype: str, descending: bool) -> Any:
    """Make a function that writes the sorted order of every row and scratch."""
    script, tirx = importlib.import_module("tvm.script.ir_builder"), load_tvm().tirx
    T, te = script.tirx, load_tvm().tvm.te
    levels = (count - 1).bit_length()

    def is_before(one: Any, other: Any) -> Any:
        first = one > other if descending else one < other
        if "float" not in dtype:
            return first
        large, small = (one, other) if descending else (other, one)
        # the values are not compared: TVM simplifies x != x
        return tirx.any(first, tirx.all(tirx.isnan(large), tirx.Not(tirx.isnan(small))))

    def body(*buffers: Any) -> Any:
        with script.IRBuilder() as made:
            keys, out, scratch, places = map(T.buffer_proxy, buffers)
            with T.parallel(0, rows) as row:

                def place(level: int, index: Any) -> tuple[Any, Any]:
                    # the last level ends in the result
                    return scratch if (levels - level) % 2 else out, (row, index)

                def merged(level: int, begin: Any) -> None:
                    width = 1 << level
                    middle = tirx.min(begin + width, count)
                    end = tirx.min(begin + 2 * width, count)
                    places[row, 0] = begin
                    places[row, 1] = middle
                    with T.serial(0, end - begin) as step:
                        # a run that is used up is read at its end, and not taken
                        runs, at = place(level, tirx.min(places[row, 0], middle - 1))
                        left = runs[at]
                        runs, at = place(level, tirx.min(places[row, 1], end - 1))
                        right = runs[at]
                        ahead = is_before(keys[row, right], keys[row, left])
                        ahead = tirx.any(places[row, 0] >= middle, ahead)
                        into, at = place(level + 1, begin + step)
                        with T.If(tirx.all(places[row, 1] < end, ahead)):
                            with T.Then():
                                into[at] = right
                                places[row, 1] = places[row, 1] + 1
                            with T.Else():
                                into[at] = left
                                places[row, 0] = places[row, 0] + 1

                with T.serial(0, count) as index:
                    first, at = place(0, index)
                    first[at] = index
                for level in range(levels):
                    with T.serial(0, -(-count // (2 << level))) as pair:
                        merged(level, pair * (2 << level))
            return made.get()

    data = te.placeholder([rows, count], dtype, name="keys")
    # the order, the other buffer, and places in the two runs that are merged
    shapes = [data.shape, data.shape, (rows, 2)]
    results = te.extern(
        shapes,
        [data],
        lambda given, made: body(*given, *made),
        dtype=[_INDEX] * 3,
        in_buffers=[tirx.decl_buffer(data.shape, dtype, "keys")],
        out_buffers=[tirx.decl_buffer(shape, _INDEX) for shape in shapes],
        name="order",
    )
    return te.create_prim_func([data, *results]).without_attr("global_symbol")
