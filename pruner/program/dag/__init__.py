"""Expressions and compute DAGs: a program before any schedule.

* `dag`: compute DAGs
* `expr`: the expressions of their stages, their constructors, and constant folding
* `operators`: the standard operators
* `tenset`: TVM's saved tensors as DAGs, whose stages Ansor numbers
* `task_index`: the DAG of a record's workload key
* `text`: DAGs as TVM prints them
"""
