"""Forecast many networks before anything runs: a filter for architecture search.

* `outline`: the tasks of a network, and the memory of its tensors
* `candidates`: networks of a list or of a generator, outlined in worker processes
* `forecaster`: seconds of networks from the drafts of their tasks, which are kept on disk
"""
