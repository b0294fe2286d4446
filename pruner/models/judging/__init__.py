"""Judge a ranking: metrics, chance, and their summary.

* `judge`: a ranker on measured programs: all metrics, chance, networks, a second timing
* `metrics`: Top-k, Best-k, pairs
"""
