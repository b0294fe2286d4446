"""The way out: what was tuned as libraries that run without this package.

* `apply`: records of the tasks put into the lowered network, and counted
* `build`: from records to one library, in a worker process
* `interface`: inputs and outputs of a network, inside its library
* `loaded`: a library that is called with tensors of torch or arrays of numpy
* `network`: all of it for a run folder: draft the rest, build, check against torch, time
* `files`: what all that leaves in the folder
* `kernels`: of single operators: libraries and sources
"""
