"""Meaning to named numbers: features of N programs at once."""

from pruner.features.batch import (
    ProgramFeatures,
    featurize_nests,
    featurize_records,
    featurize_steps,
    featurize_vectors,
)
from pruner.features.columns import (
    DATAFLOW_COLUMNS,
    FEATURE_SET_VERSION,
    OFFICIAL_COLUMNS,
    STATEMENT_COLUMNS,
    WORKLOAD_COLUMNS,
)

__all__ = [
    "DATAFLOW_COLUMNS",
    "FEATURE_SET_VERSION",
    "OFFICIAL_COLUMNS",
    "STATEMENT_COLUMNS",
    "WORKLOAD_COLUMNS",
    "ProgramFeatures",
    "featurize_nests",
    "featurize_records",
    "featurize_steps",
    "featurize_vectors",
]
