"""Tune programs on real hardware; see ``python tune.py --help``."""

from pruner.cli.shared.door import open_door

if __name__ == "__main__":
    open_door("tune")
