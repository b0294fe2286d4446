"""Score recorded programs with a trained model; see ``python predict.py --help``."""

from pruner.cli.shared.door import open_door

if __name__ == "__main__":
    open_door("predict")
