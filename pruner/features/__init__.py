"""Features of N programs at once, as named columns.

* `columns`: names, units and formulas of every column; the version of the set; values by name
* `batch`: the ragged container, from records or loop nests
* `statement`: one row per buffer store
* `dataflow`: rows of the multi-tiling pattern
* `caches`: dataflow rows of CPU programs, whose tiles are in caches
* `symbols`: inputs of the analyzer
* `batched`: batches of statements of one structure, across loop nests
* `primitives`: schedule steps as tokens
* `versions`: older feature sets whose models still load
* `workload`: flags of the compute DAG's text
* `device_vector`: a device as numbers
"""

from pruner.features.batch import (
    FeatureSpec,
    ProgramFeatures,
    featurize,
    featurize_nests,
    featurize_records,
    featurize_traces,
)
from pruner.features.columns import DATAFLOW_COLUMNS, FEATURE_SET_VERSION, STATEMENT_COLUMNS
from pruner.features.symbols.symbol_table import OFFICIAL_COLUMNS
from pruner.features.workload import WORKLOAD_COLUMNS

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
