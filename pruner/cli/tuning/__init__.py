"""Parts of ``tune.py``: typed options, display, interrupts.

* `measured_run`: a run that measures, and its state as a display or as lines
* `read_options`: the options as typed values
* `platform`: the platform and its analyzer
* `network`: the tasks of a network: list, draft, estimate, build into a library
* `predict_networks`: forecasts of networks, without measurements; also from Python
* `interrupts`: Ctrl-C and SIGTERM
* `optimize`: tuning from Python, for a module of torch
* `torch_compile`: tuning as a backend of ``torch.compile``
"""
