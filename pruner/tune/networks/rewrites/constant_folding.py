"""Fold constants by numpy, before the network is lowered.

Relax's own ``FoldConstant`` compiles every constant expression with LLVM: 17 s for the batch
normalisations of ResNet-50, and it cannot move a scale into the weights of a convolution at all.
Four rewrites, each of an inference-time expression of constants:

* ``batch_norm(x + c, g, b, m, v)`` -> ``batch_norm(x, g, b, m - c, v)`` for a bias ``c`` along the
  channels, which convolutions have by default;
* ``batch_norm(conv2d(x, w), g, b, m, v)`` -> ``conv2d(x, w s) + t``, and the same behind a
  transposed convolution, with ``s = g / sqrt(v + e)`` and ``t = b - m s``;
* ``batch_norm(x, g, b, m, v)`` -> ``x s + t``;
* ``permute_dims(w)`` -> the transposed weights.

A value with a second reader stays in front of its norm: folding would compute it twice.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Floats
from pruner.tune.networks.rewrites.operators import (
    operator_name,
    operators_of,
    shape_of,
    with_bindings,
)
from pruner.tune.tvm_import import load_tvm

_COPIES = ("relax.broadcast_to", "relax.reshape", "relax.astype")
_NORM, _TRANSPOSE = "relax.nn.batch_norm", "relax.permute_dims"
_Fold = Callable[[Any, Any], Any]  # of (relax, a function)


def fold_constants(module: Any) -> Any:
    """Fold constants in ``main`` of a Relax module with bound parameters."""
    relax = load_tvm().relax
    # in this order: a bias between convolution and norm would hide the pattern of the next fold
    folds = (
        (_NORM, _move_biases), (_NORM, _fold_into_convolutions), (_NORM, _fold_norms),
        (_TRANSPOSE, _fold_transposes),
    )  # fmt: skip
    return _rewritten(relax, module, folds)


def fold_transposes(module: Any) -> Any:
    """Transpose constants in a Relax module ahead of time."""
    return _rewritten(load_tvm().relax, module, [(_TRANSPOSE, _fold_transposes)])


def fold_views(module: Any) -> Any:
    """Reshape and transpose constants in a Relax module ahead of time.

    For biases of convolutions with channels last: `FoldConstant` would compile each with LLVM.
    """
    folds = ("relax.reshape", _fold_reshapes), (_TRANSPOSE, _fold_transposes)
    return _rewritten(load_tvm().relax, module, folds)


def _rewritten(relax: Any, module: Any, folds: Sequence[tuple[str, _Fold]]) -> Any:
    """Fold the operators that the module calls."""
    main, called = module["main"], operators_of(module)
    for operator, fold in folds:
        # each fold sees the result of the one before
        if operator in called:
            main = fold(relax, main)
    module = module.clone()
    module["main"] = main
    return relax.transform.DeadCodeElimination()(relax.transform.Normalize()(module))


def without_copies(module: Any) -> Any:
    """Drop calls that change neither shape nor type.

    torch writes a product of tensors with four dimensions with a ``broadcast_to`` of each operand,
    also where their shapes are equal. It would be a copy when the network runs.
    """
    relax, equal, main = load_tvm().relax, load_tvm().ffi.structural_equal, module["main"]
    returned = _returned(relax, main)

    def is_copy(binding: Any) -> bool:
        call = binding.value
        return (
            isinstance(binding, relax.VarBinding)
            and operator_name(call) in _COPIES
            and hash(binding.var) not in returned  # no result has the memory of an argument
            and equal(call.ty, call.args[0].ty)
        )

    copies = [one for block in main.body.blocks for one in block.bindings if is_copy(one)]
    if not copies:
        return module
    dropped = {hash(one.var): relax.VarBinding(one.var, one.value.args[0]) for one in copies}
    module = module.clone()
    module["main"] = with_bindings(
        main, lambda bindings, _: [dropped.get(hash(one.var), one) for one in bindings]
    )
    return relax.transform.CanonicalizeBindings()(module)


def _returned(relax: Any, main: Any) -> set[int]:
    """Return hashes of variables that are results, also renamed or in tuples."""
    value_of = {hash(one.var): one.value for block in main.body.blocks for one in block.bindings}
    found, waiting = set[int](), [main.body.body]
    while waiting:
        value = waiting.pop()
        if isinstance(value, relax.Tuple):
            waiting.extend(value.fields)
        elif isinstance(value, relax.TupleGetItem):
            waiting.append(value.tuple_value)  # and with it all its parts
        elif isinstance(value, relax.Var) and hash(value) not in found:
            found.add(hash(value))
            if hash(value) in value_of:
                waiting.append(value_of[hash(value)])
    return found


def _move_biases(relax: Any, main: Any) -> Any:
    dpl = relax.dpl
    data, bias, norm = dpl.wildcard(), dpl.is_const(), _norm_constants(dpl)
    along = dpl.is_op("relax.reshape")(bias, dpl.wildcard())
    biased = dpl.is_op("relax.add")(data, bias | along)
    normed = dpl.is_op("relax.nn.batch_norm")(biased, *norm)
    uses = _uses(relax, main)

    def rewrite(call: Any, found: Any) -> Any:
        gamma, beta, mean, variance = (found[k] for k in norm)
        values, added = mean.value.numpy(), found[biased].args[1]
        channels = [1, len(values), 1, 1]
        if shape_of(added) != channels or int(call.attrs.axis) != 1:
            return call
        whole = shape_of(call.args[0])
        if uses[hash(call.args[0])] > 1 or shape_of(found[data]) != whole:
            return call  # of the second kind: the sum broadcasts the data
        # in double precision: differences of large means and biases lose digits
        shift = found[bias].value.numpy().reshape(-1).astype(np.float64)
        moved = _constant(relax, values.astype(np.float64) - shift, values.dtype)
        return relax.Call(call.op, [found[data], gamma, beta, moved, variance], call.attrs)

    # without the sums that nothing reads any more, which would count as uses
    return relax.analysis.remove_all_unused(dpl.rewrite_call(normed, rewrite, main))


def _uses(relax: Any, main: Any) -> Counter[int]:
    """Count the bindings that read each variable; the result counts, too.

    Variables are keyed by hash, which is that of the object: numbers compare as expressions.
    """
    values = [binding.value for block in main.body.blocks for binding in block.bindings]
    read = map(relax.analysis.free_vars, (*values, main.body.body))
    return Counter(hash(var) for found in read for var in found)


def _fold_into_convolutions(relax: Any, main: Any) -> Any:
    dpl = relax.dpl
    data, weight, norm = dpl.wildcard(), dpl.is_const(), _norm_constants(dpl)
    plain = dpl.is_op("relax.nn.conv2d")(data, weight)
    transposed = dpl.is_op("relax.nn.conv2d_transpose")(data, weight)
    normed = dpl.is_op("relax.nn.batch_norm")(plain | transposed, *norm)
    uses = _uses(relax, main)

    def rewrite(call: Any, found: Any) -> Any:
        # folded, the convolution would be computed twice: with and without the scale
        if uses[hash(found[normed].args[0])] > 1:
            return call
        is_plain = plain in found
        conv = found[plain if is_plain else transposed]
        layout = "OIHW" if is_plain else "IOHW"
        if conv.attrs.kernel_layout != layout or (conv.attrs.groups != 1 and not is_plain):
            return call
        scale, shift = _scale_and_shift(found, norm, found[normed])
        values = found[weight].value.numpy()
        axes = (slice(None), None, None, None) if is_plain else (None, slice(None), None, None)
        folded = _constant(relax, values * scale[axes], values.dtype)
        scaled = relax.Call(conv.op, [found[data], folded], conv.attrs)
        return relax.op.add(scaled, _along_channels(relax, shift, values.dtype))

    return dpl.rewrite_call(dpl.TupleGetItemPattern(normed, 0), rewrite, main)


def _fold_norms(relax: Any, main: Any) -> Any:
    dpl = relax.dpl
    data, norm = dpl.wildcard(), _norm_constants(dpl)
    normed = dpl.is_op("relax.nn.batch_norm")(data, *norm)

    def rewrite(call: Any, found: Any) -> Any:
        if int(found[normed].attrs.axis) != 1 or len(found[data].ty.shape) != 4:
            return call
        scale, shift = _scale_and_shift(found, norm, found[normed])
        dtype = found[norm[0]].value.numpy().dtype
        scaled = relax.op.multiply(found[data], _along_channels(relax, scale, dtype))
        return relax.op.add(scaled, _along_channels(relax, shift, dtype))

    return dpl.rewrite_call(dpl.TupleGetItemPattern(normed, 0), rewrite, main)


def _fold_reshapes(relax: Any, main: Any) -> Any:
    dpl = relax.dpl
    constant, shape = dpl.is_const(), dpl.wildcard()
    reshaped = dpl.is_op("relax.reshape")(constant, shape)

    def rewrite(call: Any, found: Any) -> Any:
        if not isinstance(found[shape], relax.ShapeExpr):
            return call
        values = found[constant].value.numpy()
        sizes = [int(extent) for extent in found[shape].values]
        return _constant(relax, values.reshape(sizes), values.dtype)

    return dpl.rewrite_call(reshaped, rewrite, main)


def _fold_transposes(relax: Any, main: Any) -> Any:
    dpl = relax.dpl
    weight = dpl.is_const()
    permuted = dpl.is_op("relax.permute_dims")(weight)

    def rewrite(_: Any, found: Any) -> Any:
        axes, values = found[permuted].attrs.axes, found[weight].value.numpy()
        order = None if axes is None else [int(axis) for axis in axes]
        return _constant(relax, values.transpose(order), values.dtype)

    return dpl.rewrite_call(permuted, rewrite, main)


def _norm_constants(dpl: Any) -> list[Any]:
    return [dpl.is_const() for _ in range(4)]


def _scale_and_shift(found: Any, norm: list[Any], call: Any) -> tuple[Floats, Floats]:
    """Compute a batch normalisation's factors and summands, float64 [channels]."""
    gamma, beta, mean, variance = (found[k].value.numpy().astype(np.float64) for k in norm)
    # the operator has these inputs even where it ignores them
    if not call.attrs.scale:
        gamma = np.ones_like(gamma)
    if not call.attrs.center:
        beta = np.zeros_like(beta)
    scale = gamma / np.sqrt(variance + call.attrs.epsilon)
    return scale, beta - mean * scale


def _along_channels(relax: Any, values: Floats, dtype: Any) -> Any:
    return _constant(relax, values.reshape(1, -1, 1, 1), dtype)


def _constant(relax: Any, values: NDArray[Any], dtype: Any) -> Any:
    # named: relax takes doubles without a type for float32
    # `ascontiguousarray` would give a scalar an axis
    return relax.const(np.asarray(values, dtype, order="C"), str(np.dtype(dtype)))
