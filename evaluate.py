"""Judge a checkpoint on measured records; see ``python evaluate.py --help``."""

from pruner.cli.shared.door import open_door

if __name__ == "__main__":
    open_door("evaluate")
