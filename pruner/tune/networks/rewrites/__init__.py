"""Rewrites of a complete network, each once, before tasks are extracted.

* `operators`: which operators are called, and how calls are rewritten
* `constant_folding`: arithmetic on weights, done with numpy
* `layout`: channels first or last, bounds of integers, half precision
* `convolutions`: of signals as those of images, transposed ones as plain ones
* `sorting`: sorts that need no function of the runtime
* `packing`: weights in the order in which they are read, channels filled up to whole vectors
"""
