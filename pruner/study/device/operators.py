"""Operators of a campaign: what networks on GPUs consist of, in float32 and on tensor cores."""

from collections.abc import Mapping, Sequence

_MATMUL = ("workload=matmul", "workload.m=1024", "workload.n=1024", "workload.k=1024")
_BATCH = ("workload=batch_matmul", "workload.batch=12")  # attention of BERT-base
_HALF = "workload.dtype=float16"

OPERATORS: Mapping[str, Sequence[str]] = {
    "matmul": _MATMUL,
    "conv2d": ("workload=conv2d", "workload.n=8"),
    "matmul_half": (*_MATMUL, _HALF),
    "conv2d_half": ("workload=conv2d", "workload.n=8", _HALF),
    "batch_matmul_half": (*_BATCH, _HALF),
    "batch_matmul": _BATCH,
    "depthwise": ("workload=depthwise_conv2d", "workload.n=8"),
    "softmax": ("workload=softmax", "workload.rows=1536", "workload.columns=128"),
}
SANITY = ("matmul", "conv2d", "softmax")
