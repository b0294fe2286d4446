"""Design spaces of a live task.

* `design`: MetaSchedule's spaces and their decision vectors; rules that TVM lacks or cannot finish
* `batched`: spaces whose programs our engine computes
* `tvm`: spaces that TVM replays; `lowered`: loop nests of the replayed programs
* `union`: all spaces of a task as a single space; from TVM's traces to decision vectors
* `opening`: the spaces of a task that have legal programs
"""
