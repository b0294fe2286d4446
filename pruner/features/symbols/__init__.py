"""The analyzer's symbols of a program: GPU (paper, S1 to S8), CPU, and the released code's.

* `table`: the columns, and the container of their values
* `statement`: a statement: operations, loops by role, reach of its accesses
* `gpu`: the paper's symbols and what the hardware form adds
* `cpu`: register tile, caches, lanes, cores
* `official`: the release's 11 numbers
"""
