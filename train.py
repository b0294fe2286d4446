"""Fit a cost model on measured records; see ``python train.py --help``."""

from pruner.cli.shared.door import open_door

if __name__ == "__main__":
    open_door("train")
