"""Convert to half precision: products of float16 with float32 sums."""

from typing import Any, Literal, get_args

from pruner.errors import PrunerError
from pruner.tune.networks.rewrites.operators import operator_name
from pruner.tune.tvm_import import inside, load_tvm

Precision = Literal["float32", "float16"]


def chosen_precision(wanted: str) -> Precision:
    """Resolve a precision option; raise `PrunerError` if it is unknown."""
    for precision in get_args(Precision):
        if precision == wanted:
            return precision
    raise PrunerError(f"precision={wanted}: choose {' or '.join(get_args(Precision))}")


def mixed(module: Any) -> Any:
    """Convert convolutions and products of a Relax module to float16.

    Their sums are of float32; inputs and outputs of the network stay float32. Raises `PrunerError`:
    a product of doubles or integers, whose sums would be of float32, too.
    """
    relax = load_tvm().relax
    products = [
        call
        for call in inside(module["main"].body, relax.Call)
        if operator_name(call).startswith(("relax.matmul", "relax.nn.conv"))
    ]
    kinds = {str(call.args[0].ty.dtype) for call in products} - {"float32", "float16"}
    if kinds:
        raise PrunerError(
            f"precision=float16: this network has products of {', '.join(sorted(kinds))}, whose "
            "sums would be rounded to float32; choose precision=float32"
        )
    passes = relax.transform
    # out_dtype is the type of the sums: float16 would round each partial sum
    steps = [passes.CanonicalizeBindings(), passes.ToMixedPrecision(out_dtype="float32")]
    return load_tvm().tvm.transform.Sequential(steps)(module)
