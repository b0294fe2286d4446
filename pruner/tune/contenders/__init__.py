"""A network in the hands of others: torch, onnxruntime, TVM as it comes, timed side by side.

* `lane`: what all of them get: a device, equal cores
* `runners`: the contenders: how each loads a network and runs it
* `jobs`: what the process of a contender does
* `inputs`: the seeded inputs that all of them get
* `race`: a contender; turns one after another, medians, spread, relative errors
* `lineup`: which contenders a network has
* `libraries`: what TVM makes of a network without tuning
* `operators`: what torch calls for one operator
* `kernels`: kernels of operators beside torch, as one call
* `beside`: one call: all of them beside ours, and the file that says what came of it
"""
