"""What the doors share.

* `door`: runs a command: its words, its configuration, its last line, errors in one line
* `script`: the same for the scripts of ``experiments/``, whose options are a dataclass
* `comparison`: those of them that take hours: steps that are run once, then the tables
* `known`: which options a command knows; unknown ones are refused with the nearest
* `implied`: choices that follow from another option
* `help`: the text of ``--help``
* `options`: option values: plain, built from `_target_`, checked
* `records`: which record folders a command reads
* `dataset`: those folders as programs in memory
* `training`: training options as a typed recipe; loggers and progress of its fits
* `start`: ``train.py checkpoint=``: the model that a training goes on from
* `loggers`: CSV, TensorBoard and W&B, as ``conf/logger`` names them
* `runs`: run folders and resuming
* `trust`: which code the configuration in a run folder may name
* `sweep`: the cells of ``-m`` and their table
* `output`: lines and tables on stderr, the JSON object on stdout
* `progress`: bars on stderr
"""
