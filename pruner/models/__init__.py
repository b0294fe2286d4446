"""Who ranks: learned and symbolic cost models, losses, metrics, training.

* `model`: what every cost model says about itself
* `registry`: models by name, for checkpoints
* `ranker`: a trained model: programs in, scores out
* `together`: sums over the processes of one fit
* `predict`: scores of recorded programs as rows
* `networks`: the networks
* `trees`: gradient-boosted trees and the forest
* `analyzer`: the symbolic model
* `programs`: programs as tensors
* `training`: the recipe and the fit
* `judging`: metrics
* `checkpoint`: files of weights
* `adaptation`: a model carried to another platform
"""
