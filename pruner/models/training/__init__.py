"""Fit a model.

* `recipe`: the options that determine a training, and a trained model to continue
* `fit`: from recipe, programs and split to the best epoch
* `training`: the fit of a network; Lightning's files and Ctrl-C, adapted
* `distributed`: several processes of one fit
* `lit`: Lightning's module
* `sampler`: the programs of a batch
* `losses`: the losses
* `schedules`: learning rates
* `averaging`: weights averaged over the last epochs, or over several fits
"""
