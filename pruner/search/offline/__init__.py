"""Search on recorded pools with a simulated clock, and compare the curves.

* `recorded_space`: a pool as a space, its measurer, the clock
* `recorded`: from records to a pool
* `recorded_run`: the tuning loop on recorded pools
* `learners`: learned scores for pools
* `adaptation_run`: adaptation methods under test
* `comparison`: summarise a set of tunings
* `statistics`: paired tests and intervals
"""
