"""How a ranking is judged: metrics, chance, and their summary.

* `judge`: a ranker on measured programs
* `metrics`: Top-k, Best-k, pairs
* `networks`: Top-k of networks, whose tasks weigh as often as they are called
* `chance`: the same of a random ranker
* `ceiling`: the same of a second timing
* `summary`: one flat object with all
"""
