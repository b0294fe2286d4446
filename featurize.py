"""Write the features of record files as NumPy archives; see ``python featurize.py --help``."""

from pruner.cli.shared.door import open_door

if __name__ == "__main__":
    open_door("featurize")
