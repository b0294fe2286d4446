"""Collect measured programs from MetaSchedule's spaces, to train cost models.

Programs of a task are drawn evenly from all structures of its design spaces, built once and timed
at least twice, minutes apart. ``docs/pools.md`` describes the files.

* `drawing`: choose programs
* `measurement_log`: every draw, build and timing of a pool, written at once
* `measured_set`: a task on a platform, from its measurement log to its records
* `collector`: all pools, a pass at a time
* `records`: settings, TenSet's layout, MetaSchedule's database, the files to hand on
* `importing`: databases of others as records
* `older_functions`: functions of other releases of TVM, rebuilt from their saved graphs
* `conditions`: load and clocks of the machine meanwhile
"""
