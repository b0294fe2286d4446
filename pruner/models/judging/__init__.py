"""Judge a ranking: metrics, chance, and their summary.

* `judge`: a ranker on measured programs
* `metrics`: Top-k, Best-k, pairs
* `networks`: Top-k of networks, whose tasks weigh as often as they are called
* `chance`: the metrics of a random ranker
* `ceiling`: the metrics of a second timing
* `summary`: all metrics in one flat object
"""
