"""Rewrites of a complete network, each once, before tasks are extracted.

* `constant_folding`: arithmetic on weights, done with numpy
* `layout`: channels first or last
* `transposed`: transposed convolutions as plain ones
* `precision`: half precision
* `padding`: channels of a classifier filled up to whole vectors
* `packing`: weights in the order in which they are read
"""
