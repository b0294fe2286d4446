"""Pools of measured programs: what a cost model learns from, sampled from MetaSchedule's spaces.

Programs of a task are drawn evenly from all structures of its design spaces, built once and timed
at least twice, minutes apart. ``docs/pools.md`` describes what is written.

* `settings`: what is asked for
* `drawing`: which programs
* `ledger`: every draw, build and timing of a pool, written at once
* `pool`: one task on one platform, from its ledger to its records
* `collector`: all pools, a pass at a time
* `records`: TenSet's layout, MetaSchedule's database
* `bundle`: what others need of a finished collection
* `importing`: databases of others as records
* `conditions`: what else the machine did meanwhile
"""
