"""Judge a checkpoint on measured records; see ``python evaluate.py --help``."""

from pruner.cli.evaluate import main

if __name__ == "__main__":
    main()
