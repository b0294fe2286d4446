"""Carry a cost model to another platform while that platform is measured.

* `base`: what every method has, and what it starts from
* `keeping`: its models as checkpoints, with the tasks that they have seen
* `fitting`: the fit of one online round
* `warm`: no adaptation, and the plain fits
* `moa`: Pruner's momentum
* `distill`: the source as a teacher
* `ewc`: weights that the source needs are held back
* `moses`: only some parameters are trained
* `multitask`: target and source together
* `residual`: a small correction added to the source
"""
