"""Common parts of the commands.

* `door`: run a command: its words, its last line, errors as one line
* `script`: the same for the scripts of ``experiments/``, whose options are a dataclass
* `known`: read a command line: words that follow from others, unknown names, the nearest name
* `help`: the text of ``--help``
* `options`: the values that an option may have; values as plain ones, or built from `_target_`
* `records`: the record folders of a command, and their programs in memory
* `recipe_options`: training options as a typed recipe; loggers and progress
* `start`: ``train.py checkpoint=``: the model to continue from
* `loggers`: CSV, TensorBoard and W&B, as ``conf/logger`` names them
* `runs`: run folders and resuming
* `trust`: the code that a stored configuration may name
* `sweep`: the cells of ``-m`` and their table
* `output`: lines and tables on stderr, the JSON object on stdout
* `progress`: bars on stderr
"""
