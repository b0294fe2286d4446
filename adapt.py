"""Compare adaptation methods on recorded pools; see ``python adapt.py --help``."""

from pruner.cli.shared.door import open_door

if __name__ == "__main__":
    open_door("adapt")
