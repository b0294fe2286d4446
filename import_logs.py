"""Turn raw Ansor logs into a data root; see ``python import_logs.py --help``."""

from pruner.cli.import_logs import main

if __name__ == "__main__":
    main()
