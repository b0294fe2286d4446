"""Adaptation methods compared by online tuning on the recorded pools of another platform.

* `bench`: tasks, labels and the source model
* `cells`: one method with one seed, each a file
* `results`: summary, table, curves
"""
