"""Ten columns of words in the DAG's text (TenSet's workload embedding)."""

import numpy as np
from jaxtyping import Float32

from pruner.features.columns import flag
from pruner.program.dag.dag import ComputeDAG, dag_text

WORDS = (
    "max",
    "min",
    "add",
    "Conv2dOutput",
    "conv2d_winograd",
    "DepthwiseConv2d",
    "dense",
    "softmax",
    "compute(b, i, j)",
)
"""Substrings to find; any place counts, so ``PaddedInput`` contains ``add``."""

WORKLOAD_COLUMNS = (
    *(
        flag(
            f"text_has_{word}",
            f"1 if the text of the compute DAG contains {word!r}",
            "TenSet: workload embedding",
        )
        for word in WORDS
    ),
    flag("unused", "0", "Pruner: the embedding has ten places, TenSet fills nine"),
)


def workload_flags(dag: ComputeDAG) -> Float32[np.ndarray, " flag"]:
    """Return the values of :data:`WORKLOAD_COLUMNS` for the text of a compute DAG."""
    return text_flags(dag_text(dag))


def text_flags(text: str) -> Float32[np.ndarray, " flag"]:
    """Return the values of :data:`WORKLOAD_COLUMNS` for a computation's text."""
    return np.array([word in text for word in WORDS] + [False], dtype=np.float32)
