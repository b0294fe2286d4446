"""Compare adaptation methods by online tuning on another platform's recorded pools.

* `context`: tasks, labels and the source model
* `cells`: a method with a seed, each a file; their summary, table, curves
"""
