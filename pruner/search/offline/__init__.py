"""Search on recorded pools with a simulated clock, and compare the curves.

* `recorded_run`: a pool as a space, its measurer, the clock; the tuning loop on pools
* `recorded`: from records to a pool; learned scores for pools
* `adaptation_run`: adaptation methods under test, compared by paired tests and intervals
"""
