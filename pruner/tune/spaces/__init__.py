"""Design spaces of a live task.

* `base`: the interface of a space that the loop searches
* `design`: MetaSchedule's spaces and their decision vectors
* `rules`: schedule rules that TVM's operators require and TVM lacks
* `mma`: which spaces of `mma` instructions TVM can finish
* `batched`: spaces whose programs our engine computes
* `tvm`: spaces that TVM replays; `lowered`: loop nests of the replayed programs
* `union`: all spaces of a task as a single space
* `opening`: the spaces of a task that have legal programs
* `traces`: from TVM's traces to decision vectors
* `text`: workload flags of a TIR function
"""
