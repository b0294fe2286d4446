"""Fit a model.

* `recipe`: the options that determine a training
* `start`: a trained model that a fit continues
* `fit`: from recipe, programs and split to the best epoch
* `training`: the fit of a network
* `distributed`: several processes of one fit
* `lit`: the LightningModule
* `datamodule`: the DataModule
* `sampler`: the programs of a batch
* `losses`: the losses
* `denormals`: numbers too small for full speed
* `lightning_ways`: Lightning's files and Ctrl-C, adapted
* `schedules`: learning rates
* `averaging`: weights averaged over the last epochs
* `soup`: weights averaged over several fits
* `keep_best`: the checkpoint of the best epoch
"""
