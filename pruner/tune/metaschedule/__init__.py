"""Use our search or our model in TVM's own tuning (docs/metaschedule-plugin.md).

``tune_tir(..., strategy=search_strategy(), cost_model="none")``: everything else stays TVM's.

* `plugin`: `search_strategy`, draft-then-verify as a search strategy of MetaSchedule; `cost_model`,
  the learned model behind TVM's evolutionary search
* `session`: tasks, targets and results of TVM, and the state that all tasks of a tuning share
"""

from pruner.tune.metaschedule.plugin import cost_model, search_strategy
from pruner.tune.tvm_import import warm_worker

__all__ = ["cost_model", "search_strategy", "warm_worker"]
