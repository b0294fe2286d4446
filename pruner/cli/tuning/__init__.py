"""Tuning at the doors: what is asked for, what is shown and heard meanwhile.

* `folder`: where a run lies
* `session`: a run that measures
* `asked`: its options as typed values
* `platform`: the platform that they name, and what drafts for it
* `network`: tasks of a network: listed, drafted, estimated, built into a library
* `interrupts`: Ctrl-C and SIGTERM
* `optimize`: the same from Python, for a module of torch
* `torch_compile`: the same as a backend of ``torch.compile``
* `pools`: what `collect.py backend=tvm` measures, and where
* `live`: the state of a run, as a display or as lines
"""
