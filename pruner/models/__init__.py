"""Cost models: networks, trees and the analyzer; losses, metrics and training.

* `model`: the interface of every cost model
* `registry`: models by name, for checkpoints
* `ranker`: a trained model: programs in, scores out
* `predict`: scores of recorded programs as rows
* `forecast`: seconds of programs, with an interval
* `networks`: the networks
* `trees`: gradient-boosted trees and the random forest
* `proposals`: language models that propose programs
* `analyzer`: the analyzer, which learns nothing
* `programs`: programs as tensors
* `training`: the recipe and the training
* `judging`: metrics
* `checkpoint`: files of weights
* `adaptation`: adaptation of a model to another platform
"""
