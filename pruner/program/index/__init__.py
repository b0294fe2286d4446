"""Index arithmetic on arrays, for N programs at once.

* `affine`: sums of loop variables with coefficients
* `divide`: quotients and remainders of such sums
* `regions`: the values that indices take, also indices that are no sums of loop variables
"""
