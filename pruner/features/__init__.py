"""Features of N programs at once, as named columns; `batch` is the ragged container.

A row of `statement` for each buffer store, rows of `dataflow` for the multi-tiling pattern, the
analyzer's `symbols`, schedule steps as tokens (`primitives`), and flags of the workload.
"""

from pruner.features.batch import (
    FeatureSpec,
    ProgramFeatures,
    featurize,
    featurize_nests,
    featurize_records,
    featurize_traces,
)
from pruner.features.columns import (
    DATAFLOW_COLUMNS,
    FEATURE_SET_VERSION,
    STATEMENT_COLUMNS,
    WORKLOAD_COLUMNS,
)
from pruner.features.symbols.symbol_table import OFFICIAL_COLUMNS

__all__ = [
    "DATAFLOW_COLUMNS",
    "FEATURE_SET_VERSION",
    "OFFICIAL_COLUMNS",
    "STATEMENT_COLUMNS",
    "WORKLOAD_COLUMNS",
    "FeatureSpec",
    "ProgramFeatures",
    "featurize",
    "featurize_nests",
    "featurize_records",
    "featurize_traces",
]
