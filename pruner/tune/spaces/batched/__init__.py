"""MetaSchedule's design spaces as batched spaces: TVM's objects in, decision vectors out.

* `space`: the space
* `trace`: a trace as instructions, of which TVM applies some before the first decision
* `prim_func`: a ``PrimFunc`` as a block tree, and as text
* `decisions`: sampling and mutating
* `token_reading`: decisions as tokens of a proposal model
* `tiling`: tiles, the units of the device that they are aligned with, and limits of threads
"""
