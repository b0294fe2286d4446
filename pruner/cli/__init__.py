"""The doors: one thin Hydra entry for each command."""
