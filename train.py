"""Fit a cost model on measured records; see ``python train.py --help``."""

from pruner.cli.train import main

if __name__ == "__main__":
    main()
