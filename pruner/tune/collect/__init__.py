"""Measuring CPU schedules with Ansor (TVM 0.19), which lives in a virtual environment of its own.

`worker` and `remeasure` run inside the Ansor environment, so they import, directly or not, nothing
but the standard library, numpy and tvm.

* `driver`: one child process for each task and target
* `worker`: that child
* `spec`: what the child is told
* `tasks`: what is measured
* `layout`: where files lie
* `noise`: how well measurements repeat
* `remeasure`: the child that measures again
"""
