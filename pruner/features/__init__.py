"""Features of N programs at once, as named columns.

* `columns`: names, units and formulas of every column; the version of the set
* `column`: one column, and values by column name
* `batch`: the ragged container, from records, decision vectors or loop nests
* `statement`: one row per buffer store
* `dataflow`: rows of the multi-tiling pattern
* `caches`: the same for CPUs, whose tiles are in caches
* `symbols`: inputs of the analyzer
* `primitives`: schedule steps as tokens
* `versions`: older feature sets whose models still load
* `workload`: flags of the compute DAG's text
* `hardware`: a device as numbers
"""

from pruner.features.batch import (
    ProgramFeatures,
    featurize_groups,
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
    "featurize_groups",
    "featurize_nests",
    "featurize_records",
    "featurize_steps",
    "featurize_vectors",
]
