"""The commands: one Hydra entry point for each, `<command>.py`.

A command reads its configuration, makes typed values, calls one function of the other packages,
writes the run folder and returns the last line. `shared/` has the common parts.
"""
