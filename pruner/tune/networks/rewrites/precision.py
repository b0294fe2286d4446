"""Convert to half precision: products of float16 with float32 sums."""

from typing import Any, Literal, get_args

from pruner.errors import PrunerError
from pruner.tune.tvm_import import load_tvm

Precision = Literal["float32", "float16"]


def chosen_precision(wanted: str) -> Precision:
    """Resolve a precision option; raise `PrunerError` if it is unknown."""
    for precision in get_args(Precision):
        if precision == wanted:
            return precision
    raise PrunerError(f"precision={wanted}: choose {' or '.join(get_args(Precision))}")


def mixed(module: Any) -> Any:
    """Convert convolutions and products of a Relax module to float16.

    Their sums are of float32; inputs and outputs of the network stay float32.
    """
    passes = load_tvm().relax.transform
    # out_dtype is the type of the sums: float16 would round each partial sum
    steps = [passes.CanonicalizeBindings(), passes.ToMixedPrecision(out_dtype="float32")]
    return load_tvm().tvm.transform.Sequential(steps)(module)
