"""Fitting a model.

* `recipe`: everything that decides what a training computes
* `start`: a trained model that a fit goes on from
* `fit`: from recipe, programs and split to the best epoch
* `training`: the fit of a network
* `processes`: several processes of one fit
* `lit`: the LightningModule
* `datamodule`: the DataModule
* `sampler`: which programs meet in a batch
* `losses`: what is minimised
* `denormals`: numbers too small for full speed
* `lightning_ways`: the files and the Ctrl-C of Lightning, as ours
* `schedules`: learning rates
* `averaging`: weights averaged over the last epochs
* `soup`: which of several fits are averaged
* `keep_best`: the checkpoint of the best epoch
"""
