"""The analyzer's symbols of a program: GPU, CPU, and the release's.

GPU symbols S1 to S8 are the paper's.

* `symbol_table`: the columns, and the container of their values
* `statement`: operations, loops by role and reach of accesses of one statement
* `gpu`: the paper's symbols and the hardware model's further ones
* `cpu`: register tile, caches, lanes, cores
* `official`: the release's 11 numbers
"""
