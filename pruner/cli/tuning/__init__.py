"""What ``tune.py`` shows and hears while it tunes.

* `interrupts`: Ctrl-C and SIGTERM
* `live`: the state of a run, as a display or as lines
"""
