"""Bring an official Pruner checkpoint in; see ``python import_checkpoint.py --help``."""

from pruner.cli.import_checkpoint import main

if __name__ == "__main__":
    main()
