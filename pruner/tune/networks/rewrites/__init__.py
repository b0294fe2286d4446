"""Rewrites of a whole network, each once, before its functions are tasks.

* `constants`: arithmetic on weights, done with numpy
* `layout`: channels first or last
* `transposed`: transposed convolutions as plain ones
* `precision`: half precision
* `packing`: weights in the order in which they are read
"""
