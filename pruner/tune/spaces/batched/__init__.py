"""MetaSchedule's design spaces as batched spaces: TVM's objects in, decision vectors out.

* `space`: the space
* `trace`: a trace as instructions
* `head`: instructions that TVM applies once, before the first decision
* `prim_func`: a ``PrimFunc`` as a block tree
* `decisions`: sampling and mutating
* `mutators`: which decision changes
* `threads`: draws that have too many threads
* `token_reading`: decisions as tokens of a proposal model
* `tiling`: tiles, and the units of the device that they are aligned with
"""
