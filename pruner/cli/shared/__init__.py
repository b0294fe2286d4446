"""Common parts of the commands.

* `door`: run a command: options, configuration, last line, errors as one line
* `script`: the same for the scripts of ``experiments/``, whose options are a dataclass
* `comparison`: scripts that take hours: steps that run once, then the tables
* `known`: the options of a command; an unknown option is refused with the nearest name
* `implied`: choices that follow from another option
* `help`: the text of ``--help``
* `options`: option values: plain, built from `_target_`, checked
* `records`: the record folders of a command
* `dataset`: those folders as programs in memory
* `training`: training options as a typed recipe; loggers and progress
* `start`: ``train.py checkpoint=``: the model to continue from
* `loggers`: CSV, TensorBoard and W&B, as ``conf/logger`` names them
* `runs`: run folders and resuming
* `trust`: the code that a stored configuration may name
* `sweep`: the cells of ``-m`` and their table
* `output`: lines and tables on stderr, the JSON object on stdout
* `progress`: bars on stderr
"""
