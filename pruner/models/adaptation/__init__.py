"""Carry a cost model to another platform while that platform is measured.

* `base`: what every method has, what it starts from, and its models as checkpoints
* `fitting`: the fit of one online round
* `warm`: no adaptation, and the plain fits
* `moa`: Pruner's momentum
* `distill`: the source as a teacher
* `ewc`: weights that the source needs are held back
* `moses`: only some parameters are trained
* `multitask`: target and source together
* `residual`: a small correction added to the source
"""
