"""Bring an official Pruner checkpoint in; see ``python import_checkpoint.py --help``."""

from pruner.cli.shared.door import open_door

if __name__ == "__main__":
    open_door("import_checkpoint")
