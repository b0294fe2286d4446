"""MetaSchedule's design spaces as batched spaces: TVM's objects in, decision vectors out.

* `space`: the space
* `trace`: a trace as instructions
* `prim_func`: a ``PrimFunc`` as a block tree
* `decisions`: sampling and mutating
* `mutators`: which decision changes
* `threads`: draws that have too many threads
"""
