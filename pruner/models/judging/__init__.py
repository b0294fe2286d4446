"""Judge a ranking: metrics, chance, and their summary.

* `judge`: a ranker on measured programs
* `metrics`: Top-k, Best-k, pairs
* `chance`: the metrics of a random ranker
* `summary`: all metrics in one flat object, also of networks and of a second timing
"""
