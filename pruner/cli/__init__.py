"""The doors: one thin Hydra entry for each command, `<command>.py`.

A door reads its configuration, builds typed values, calls one function of the rooms below, writes
the run folder and returns the last line. What doors share is in `shared/`.
"""
