"""Turn raw Ansor logs into a data root; see ``python import_logs.py --help``."""

from pruner.cli.shared.door import open_door

if __name__ == "__main__":
    open_door("import_logs")
