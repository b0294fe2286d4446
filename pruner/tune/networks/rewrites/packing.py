"""Pack weights in the order in which programs read memory.

A matrix of weights [..., inputs, outputs] is read in rows of a few neighbouring outputs, one row an
input, so that every row comes from another page. Packed as [outputs / b, ..., inputs, b] it is one
stream: BLAS libraries do this before every product (Goto and van de Geijn, 2008), here it is done
once.

The output axis of the multiplying block, of the blocks behind it and of their tensors becomes the
two axes [outputs / b, b]. That moves no element: the functions around see the tensors as before, a
call of a packed function is between views.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.tune.networks.lowered_parts import LoweredParts
from pruner.tune.networks.rewrites.operators import (
    is_constant,
    operator_name,
    operators_of,
    rewritten,
    shape_of,
    with_bindings,
)
from pruner.tune.tvm_import import inside, load_tvm

# Outputs of a row; the first that divides them. All are whole vectors of 8: the 1,000 classes of
# ImageNet are 25 rows of 40, unpacked their only divisors in a vector's range are 25 and 8.
WIDTHS = (32, 16, 40, 24)
_WHOLE = (32, 16)  # of these, whole vectors and tiles
_MOST_PADDED = 0.05  # share of additional arithmetic

_Weights = NDArray[Any]
_IndexMap = Callable[..., list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Weights of a function to pack, with the affected blocks and arguments.

    Argument ``place`` is the weights; their dimension ``axis`` is packed by ``width``. ``block``
    multiplies with them; its iterator ``slot`` runs over that dimension, the last one of its
    result. ``behind``: the elementwise blocks that take the result, in program order. ``views``:
    arguments that get another shape, with the dimension that is split.
    """

    place: int
    axis: int
    width: int
    block: str
    slot: int
    behind: tuple[str, ...]
    views: Mapping[int, int]

    def packed(self, weights: _Weights) -> _Weights:
        """Reorder the constant weights."""
        shape = _split_shape(list(weights.shape), self.axis, self.width)
        # outer part of the split dimension first, its inner part last
        moved = np.moveaxis(weights.reshape(shape), (self.axis, self.axis + 1), (0, -1))
        return np.ascontiguousarray(moved)

    def view(self, place: int, shape: Sequence[int]) -> list[int]:
        """Compute the new shape of an argument."""
        return _split_shape(list(shape), self.views[place], self.width)


def pack_weights(module: Any, known: LoweredParts | None = None) -> Any:
    """Pack constant weights in every suitable function of a lowered module."""
    tvm, relax, known = load_tvm().tvm, load_tvm().relax, known or LoweredParts()
    constant = _constant_arguments(relax, module["main"])
    found = {
        name: known.of("pack", function, partial(_packed, constant=constant[name]), constant[name])
        for name, function in module.functions_items()
        if name in constant
    }
    packings = {name: one for name, one in found.items() if one is not None}
    kept = {name: f for name, f in module.functions_items() if name not in packings}
    # Another signature needs another global variable: its type is that of the function.
    builder = relax.BlockBuilder(tvm.IRModule(kept, attrs=module.attrs))
    ways = {
        name: (packing, builder.add_func(function, name.name_hint))
        for name, (packing, function) in packings.items()
    }

    def changed(bindings: Any, variable: Any) -> Iterator[Any]:
        for binding in bindings:
            call = binding.value
            way = ways.get(call.args[0]) if _is_call_tir(call) else None
            if way is None:
                yield binding
            else:
                yield from _packed_call(variable, binding, *way)

    packed = builder.get()
    packed["main"] = with_bindings(module["main"], changed)
    return relax.transform.Normalize()(packed)


def _packed(function: Any, constant: frozenset[int]) -> tuple[Packing, Any] | None:
    """Pack the constant weights of a function where that is possible, else None."""
    found = inside(function.body, load_tvm().s_tir.SBlock)
    blocks = [block for block in found if type(block.body).__name__ == "BufferStore"]
    for number, block in enumerate(blocks):
        behind = _elementwise_behind(block, blocks[number + 1 :])
        # weights are packed for products, which are reductions
        if block.init is None or behind is None:
            continue
        slot = _place(block, block.body.indices[-1])
        for place in sorted(constant):
            weights = tensors_of(function)[place]
            axis = _packed_axis(blocks, block, weights, slot)
            outputs = 1 if axis is None else int(weights.shape[axis])
            width = next((width for width in WIDTHS if outputs % width == 0), None)
            if axis is not None and width is not None:
                packing = Packing(
                    place=place,
                    axis=axis,
                    width=width,
                    block=str(block.name_hint),
                    slot=slot,
                    behind=tuple(str(other.name_hint) for other in behind),
                    views=_views(tensors_of(function), place, slot, blocks, (block, *behind)),
                )
                return packing, packed_function(function, packing)
    return None


def packed_function(function: Any, packing: Packing) -> Any:
    """Rewrite a function to take packed weights."""
    s_tir = load_tvm().s_tir
    weights = tensors_of(function)[packing.place]
    schedule = s_tir.Schedule(function)
    block = schedule.get(schedule.get_sblock(packing.block))
    read = next(i for i, region in enumerate(block.reads) if region.source.same_as(weights))
    last = len(block.body.indices) - 1
    # the block first, so that the buffer's new index is an iterator alone and no quotient
    _split_iterator(schedule, packing.block, packing.slot, packing.width)
    order = _split_and_first(packing.axis, packing.width)
    schedule.transform_layout(packing.block, ("read", read), order)
    split = _split_in_place(last, packing.width)
    for name in packing.behind:
        _split_iterator(schedule, name, last, packing.width)
    for name in (packing.block, *packing.behind):
        written = schedule.get(schedule.get_sblock(name)).writes[0].source
        if not any(written.same_as(buffer) for buffer in tensors_of(schedule.mod["main"])):
            schedule.transform_layout(name, ("write", 0), split)
    for place, axis in packing.views.items():
        _split_argument(schedule, packing, place, axis)
    return schedule.mod["main"]


def _split_argument(schedule: Any, packing: Packing, place: int, axis: int) -> None:
    buffer = tensors_of(schedule.mod["main"])[place]
    split = _split_in_place(axis, packing.width)
    for name in (packing.block, *packing.behind):
        block = schedule.get(schedule.get_sblock(name))
        for kind, regions in (("read", block.reads), ("write", block.writes)):
            for number, region in enumerate(regions):
                if region.source.same_as(buffer):
                    schedule.transform_layout(name, (kind, number), split)
                    return


def _split_iterator(schedule: Any, name: str, slot: int, width: int) -> None:
    axes = schedule.get(schedule.get_sblock(name)).iter_vars
    index_map = load_tvm().tirx.IndexMap.from_func(
        _split_in_place(slot, width), ndim=len(axes), index_dtype=str(axes[slot].var.ty)
    )
    schedule.transform_block_layout(name, index_map)


def _split_in_place(axis: int, width: int) -> _IndexMap:
    return lambda *i: [*i[:axis], i[axis] // width, i[axis] % width, *i[axis + 1 :]]


def _split_and_first(axis: int, width: int) -> _IndexMap:
    return lambda *i: [i[axis] // width, *i[:axis], *i[axis + 1 :], i[axis] % width]


def tensors_of(function: Any) -> list[Any]:
    """List the tensors of a function's parameters, in order."""
    return [p if hasattr(p, "shape") else function.buffer_map[p] for p in function.params]


def _place(block: Any, index: Any) -> int:
    """Find the iterator that an index is; -1 for an expression."""
    found = [slot for slot, it in enumerate(block.iter_vars) if index.same_as(it.var)]
    return found[0] if found else -1


def _loads(block: Any, buffer: Any) -> list[Any]:
    loads = inside(block.body.value, load_tvm().tvm.ir.TensorLoad)
    return [load for load in loads if load.source.same_as(buffer)]


def _elementwise_behind(block: Any, later: Sequence[Any]) -> list[Any] | None:
    """List the blocks that take a block's result; None if not elementwise."""
    results, behind = [block.body.buffer], []
    stored = [_place(block, index) for index in block.body.indices]
    if -1 in stored or not stored:
        return None
    for other in later:
        taken = [load for buffer in results for load in _loads(other, buffer)]
        if not taken:
            continue
        every = list(range(len(other.iter_vars)))
        touched = [other.body.indices, *(load.indices for load in taken)]
        if len(every) != len(stored) or other.init is not None:
            return None
        if any([_place(other, index) for index in indices] != every for indices in touched):
            return None
        results.append(other.body.buffer)
        behind.append(other)
    return behind


def _packed_axis(blocks: Sequence[Any], block: Any, weights: Any, slot: int) -> int | None:
    """Find the dimension of the weights that iterator ``slot`` runs over.

    None unless the iterator moves this dimension only, no other operand, and no other block reads
    the weights.
    """
    if any(_loads(other, weights) for other in blocks if not other.same_as(block)):
        return None
    loads = _loads(block, weights)
    if len(loads) != 1 or slot < 0:
        return None
    places = [_place(block, index) for index in loads[0].indices]
    others = [region for region in block.reads if not region.source.same_as(weights)]
    variable = block.iter_vars[slot].var
    indices = [index.min for region in others for index in region.region]
    if any(var.same_as(variable) for one in indices for var in inside(one, type(variable))):
        return None
    return places.index(slot) if -1 not in places and places.count(slot) == 1 else None


def _views(
    arguments: Sequence[Any], weights: int, slot: int, blocks: Sequence[Any], split: Sequence[Any]
) -> dict[int, int]:
    """Find the arguments with a dimension that always runs over outputs.

    The result maps the place of an argument to its dimension. ``split``: the multiplying block,
    whose iterator ``slot`` runs over the outputs, and the blocks behind it.
    """
    last = len(split[0].body.indices) - 1
    out: dict[int, int] = {}
    for place, buffer in enumerate(arguments):
        axes: set[int] = set()
        for block in blocks:
            number = next((i for i, other in enumerate(split) if other.same_as(block)), -1)
            runs = (slot if number == 0 else last) if number >= 0 else None
            stores = [block.body.indices] if block.body.buffer.same_as(buffer) else []
            for indices in [*stores, *(load.indices for load in _loads(block, buffer))]:
                at = [axis for axis, index in enumerate(indices) if _place(block, index) == runs]
                axes.add(at[0] if len(at) == 1 else -1)
        if place != weights and len(axes) == 1 and -1 not in axes:
            out[place] = axes.pop()
    return out


def _split_shape(shape: list[int], axis: int, width: int) -> list[int]:
    return [*shape[:axis], shape[axis] // width, width, *shape[axis + 1 :]]


def _constant_arguments(relax: Any, main: Any) -> dict[Any, frozenset[int]]:
    """Find the arguments of every function that are constant in all calls.

    Functions with several outputs have none.
    """
    out: dict[Any, frozenset[int]] = {}
    for block in main.body.blocks:
        for binding in block.bindings:
            call = binding.value
            if not _is_call_tir(call):
                continue
            one = isinstance(call.ty_args[0], relax.TensorType)
            places = [i for i, x in enumerate(call.args[1]) if one and is_constant(x)]
            # constant in every call, or the function would be needed in both forms
            out[call.args[0]] = out.get(call.args[0], frozenset(places)) & frozenset(places)
    return out


def _packed_call(
    variable: Callable[..., Any], binding: Any, packing: Packing, function: Any
) -> list[Any]:
    """Make the bindings that replace a call; `variable` constructs their variables."""
    relax, call, out = load_tvm().relax, binding.value, []
    arguments: list[Any] = []
    for place, argument in enumerate(call.args[1]):
        if place == packing.place:
            weights = packing.packed(argument.value.numpy())
            argument = relax.const(weights, str(weights.dtype))
        elif place in packing.views:
            shape = packing.view(place, shape_of(argument))
            if is_constant(argument):
                values = argument.value.numpy().reshape(shape)
                argument = relax.const(values, str(values.dtype))
            else:
                view = variable("view", relax.TensorType(shape, argument.ty.dtype))
                out.append(relax.VarBinding(view, relax.op.reshape(argument, shape)))
                argument = view
        arguments.append(argument)
    (given,) = call.ty_args
    shape = [int(extent) for extent in given.shape]
    if len(arguments) in packing.views:
        given = relax.TensorType(packing.view(len(arguments), shape), given.dtype)
    result = variable("packed", given)
    changed = [function, relax.Tuple(arguments), *call.args[2:]]
    value = relax.Call(call.op, changed, call.attrs, [given], call.span)
    out.append(relax.VarBinding(result, value))
    return [*out, relax.VarBinding(binding.var, relax.op.reshape(result, shape))]


def _is_call_tir(value: Any) -> bool:
    return operator_name(value) == "relax.call_tir"


def pad_classifier(module: Any) -> Any:
    """Fill up averaged convolutions of a Relax module with channels last.

    Vectors run over neighbouring output channels, and tiles of them fill the registers. SqueezeNet
    ends in a convolution to 1,000 channels, averaged over the image: 1,000 is 8 x 125, so tiles
    have 8 or 40 channels, too few or too many for 13 rows of 13 pixels. The best of 134 programs of
    it reached 155 GFLOP/s, its neighbours 310. Filled up with weights of zero to 1,024 it performs
    like these; the additional channels are cut off behind the average, where they are few numbers.
    """
    if "relax.mean" not in operators_of(module):
        return module
    relax = load_tvm().relax
    dpl = relax.dpl
    data, weight, bias = dpl.wildcard(), dpl.is_const(), dpl.is_const()
    product = dpl.is_op("relax.nn.conv2d")(data, weight)
    of_image = dpl.is_op("relax.reshape")(bias, dpl.wildcard())
    of_pixels = dpl.is_op("relax.permute_dims")(of_image)
    active = dpl.is_op("relax.nn.relu")(dpl.is_op("relax.add")(product, of_pixels))
    pattern = dpl.is_op("relax.mean")(active)

    def rewrite(call: Any, found: Any) -> Any:
        outputs = int(found[weight].ty.shape[-1])
        padded = padded_size(outputs)
        # the average must keep the channels, or zeros would change its value
        if padded is None or not _is_plain(found[product]) or not _keeps_channels(call):
            return call
        weights, shifts = (_filled(relax, found[part], padded) for part in (weight, bias))
        shifts = relax.op.reshape(shifts, (1, 1, 1, padded))
        convolution = found[product]
        wide = relax.Call(convolution.op, [found[data], weights], convolution.attrs)
        averaged = relax.Call(call.op, [relax.op.nn.relu(relax.op.add(wide, shifts))], call.attrs)
        return relax.op.strided_slice(averaged, [-1], [0], [outputs])

    return rewritten(module, pattern, rewrite)


def padded_size(outputs: int) -> int | None:
    """Return the number of channels to compute, None: no change."""
    if any(outputs % width == 0 for width in _WHOLE):
        return None
    sizes = (-(-outputs // width) * width for width in _WHOLE)
    return next((size for size in sizes if size <= (1 + _MOST_PADDED) * outputs), None)


def _is_plain(convolution: Any) -> bool:
    attrs = convolution.attrs
    return (attrs.data_layout, attrs.kernel_layout, int(attrs.groups)) == ("NHWC", "HWIO", 1)


def _keeps_channels(mean: Any) -> bool:
    """Check that a mean of four dimensions excludes the last."""
    axes = mean.attrs.axis
    return axes is not None and all(int(axis) % 4 != 3 for axis in axes)


def _filled(relax: Any, constant: Any, size: int) -> Any:
    values = constant.value.numpy()
    behind = [(0, 0)] * (values.ndim - 1) + [(0, size - values.shape[-1])]
    return relax.const(np.pad(values, behind), str(values.dtype))
