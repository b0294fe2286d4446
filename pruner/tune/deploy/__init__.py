"""The way out: what was tuned as libraries that run without this package.

* `apply`: records of the tasks put into the lowered network, and counted
* `build`: from records to one library, in a child process
* `network`: all of it for a run folder: draft the rest, build, check against torch, time
* `kernels`: of single operators: libraries and sources
"""
