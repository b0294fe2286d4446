"""Search on recorded pools with a simulated clock, and compare the curves.

* `recorded_space`: a pool as a space, its measurer, the clock
* `recorded`: from records to a pool; learned scores for pools
* `recorded_run`: the tuning loop on recorded pools
* `adaptation_run`: adaptation methods under test
* `comparison`: summarise a set of tunings by paired tests and intervals
"""
