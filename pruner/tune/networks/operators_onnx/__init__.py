"""ONNX operators that TVM's front end lacks or converts wrongly, by families.

A converter ``(front, inputs, attrs)`` makes Relax expressions. ``front`` is the importer: it has
TVM's block builder ``bb``, and ``convert(name, inputs, attrs)`` is TVM's own conversion of an
operator; ``operator`` is the same, by these converters first. ``inputs`` are Relax expressions, or
None for those that are left out. ``attrs`` are as TVM reads them: text is bytes. A converter
returns None where TVM's own is right.

* `elementwise`: clips, minima and maxima of several tensors, powers, normalisations
* `indexing`: padding, tiling, one-hot, cumulative sums, writes at indices
* `pools`: windows whose padding follows from their sizes, and places of maxima
* `products`: transposed convolutions, Einstein sums, products of quantised tensors
* `recurrent`: LSTM, GRU and RNN of short fixed sequences
* `resizing`: resampling with a scale that is not the ratio of the sizes
"""

from collections.abc import Callable
from typing import Any

from pruner.tune.networks.operators_onnx import (
    elementwise,
    indexing,
    pools,
    products,
    recurrent,
    resizing,
)

Converter = Callable[[Any, Any, Any], Any]

CONVERTERS: dict[str, Converter] = {
    **elementwise.CONVERTERS,
    **indexing.CONVERTERS,
    **pools.CONVERTERS,
    **products.CONVERTERS,
    **recurrent.CONVERTERS,
    **resizing.CONVERTERS,
}
