"""Index arithmetic on arrays.

* `affine`: sums of loop variables with coefficients
* `divide`: their quotients and remainders
* `regions`: the values they take
* `lookup`: indices that are no sums of loop variables
"""
