"""The commands, a function in `<command>.py` with options in `conf/<command>.yaml`.

A command reads its configuration, makes typed values, calls one function of the other packages,
writes the run folder and returns the last line. `shared/` has the common parts.
"""
