"""Search on recorded pools with a simulated clock, and how its curves are compared.

* `pool`: a pool as a space, its measurer, the clock
* `recorded`: from records to a pool
* `session`: the tuning loop on recorded pools
* `learners`: learned scores for pools
* `tuning`: adaptation methods under test
* `comparison`: what a set of tunings says
* `statistics`: paired tests and intervals
"""
