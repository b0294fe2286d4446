"""Long comparisons as steps: commands that each leave a file, once, taken up after any stop.

* `step`: a command, what it leaves, what it needs
* `times`: how long steps took, what is expected of the others
* `command`: run one with a limit of seconds
* `runs`: runs of ``tune.py`` that go on where they were ended
* `boxes`: run many, those of a box within its seconds
"""
