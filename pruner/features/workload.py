"""Ten columns that tell kinds of work apart: words in the text of the compute DAG.

The same for every program of a task. Source: the workload embedding of TenSet's cost models (nine
words) and the tenth column that Pruner's keep at zero.
"""

import numpy as np
from jaxtyping import Float32

from pruner.features.column import Column
from pruner.program.dag.dag import ComputeDAG
from pruner.program.dag.text import dag_text

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
"""Substrings looked for; any place counts, so ``PaddedInput`` contains ``add``."""

WORKLOAD_COLUMNS = (
    *(
        Column(
            name=f"text_has_{word}",
            unit="0 or 1",
            formula=f"1 if the text of the compute DAG contains {word!r}",
            source="TenSet: workload embedding",
        )
        for word in WORDS
    ),
    Column(
        name="unused",
        unit="0 or 1",
        formula="0",
        source="Pruner: the embedding has ten places, TenSet fills nine",
    ),
)


def workload_flags(dag: ComputeDAG) -> Float32[np.ndarray, " flag"]:
    """Values of :data:`WORKLOAD_COLUMNS`.

    Words are looked for in the text as the original prints it, so those in the lost middle of a
    very long line do not count.
    """
    return text_flags(dag_text(dag))


def text_flags(text: str) -> Float32[np.ndarray, " flag"]:
    """Values of :data:`WORKLOAD_COLUMNS` for the text of a computation."""
    return np.array([word in text for word in WORDS] + [False], dtype=np.float32)
