"""Who spends the measurement budget.

* `space`: what a search needs of a space
* `policy`: policies: at random, and draft then verify
* `adatune`: AdaTune's policy
* `explorer`: evolution with the draft score
* `selection`: what is kept: the best, apart from each other, some by chance
* `failures`: failures, and how they are avoided
* `offline`: search on recorded pools
"""
