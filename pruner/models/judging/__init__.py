"""How a ranking is judged: metrics, chance, and their summary.

* `judge`: a ranker on measured programs
* `metrics`: Top-k, Best-k, pairs
* `chance`: the same of a random ranker
* `ceiling`: the same of a second timing
* `summary`: one flat object with all
"""
