"""ONNX operators that TVM's front end lacks or converts wrongly, by families.

A converter ``(front, inputs, attrs)`` makes Relax expressions. ``front`` is the importer: it has
TVM's block builder ``bb``, and ``convert(name, inputs, attrs)`` is TVM's own conversion of an
operator; ``operator`` is the same, by these converters first. ``inputs`` are Relax expressions, or
None for those that are left out. ``attrs`` are as TVM reads them: text is bytes. A converter
returns None where TVM's own is right.

* `elementwise`: clips, minima and maxima of several tensors, powers, normalisations
* `indexing`: padding, tiling, one-hot, cumulative sums, writes at indices, resampling
* `recurrent`: LSTM, GRU and RNN of short fixed sequences
* `windows`: pools, convolutions, Einstein sums, products of quantised tensors
"""

from collections.abc import Callable
from typing import Any

from pruner.tune.networks.operators_onnx import elementwise, indexing, recurrent, windows

CONVERTERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    **elementwise.CONVERTERS,
    **indexing.CONVERTERS,
    **recurrent.CONVERTERS,
    **windows.CONVERTERS,
}
