"""Whole networks: definitions, import into Relax, and the tasks that they consist of.

* `convolutional`, `transformer`, `detection`: named networks in plain torch, most of them of the
  paper's Tables 3 and 4
* `catalog`: their names
* `sizes`: what may be asked of them
* `memory`: whether its weights fit, asked before they are there
* `source`: one of them, a user's factory or a file, as a Relax module
* `rewrites`: constants, layout, precision and packed weights
* `lowering`: from Relax to functions that can be tuned
* `request`: what is asked for, and the lowered module that it gives, kept for the library
* `tasks`: which functions differ, how often each is called, its share of the work
* `coverage`: whether the engine computes a task's programs in batches
* `extraction`: all that in a worker process
* `worker`: such a process, whose output is a log
* `drafted`: a schedule for every task that nobody measured
* `drafting`: that of one task, in a worker process
"""
