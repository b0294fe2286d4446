"""Rewrites of a complete network, each once, before tasks are extracted.

* `operators`: which operators are called, and how calls are rewritten
* `signals`: convolutions of signals as those of images
* `constant_folding`: arithmetic on weights, done with numpy
* `layout`: channels first or last, and bounds of integers
* `transposed`: transposed convolutions as plain ones
* `precision`: half precision
* `sorting`: sorts that need no function of the runtime
* `packing`: weights in the order in which they are read, channels filled up to whole vectors
"""
