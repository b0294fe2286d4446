"""Design spaces of a live task.

* `base`: what the loop asks of one space
* `design`: MetaSchedule's spaces and their decision vectors
* `rules`: what TVM's operators ask for and TVM lacks
* `mma`: which spaces of `mma` instructions TVM can finish
* `batched`: spaces whose programs our engine computes
* `tvm`: spaces that TVM replays; `lowered`: loop nests of what it made
* `union`: all spaces of a task as one
* `opening`: those of a task that have legal programs
* `traces`: from TVM's traces to decision vectors
* `text`: workload flags of a TIR function
"""
