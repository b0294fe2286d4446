"""Measure CPU schedules; see ``python collect.py --help``."""

from pruner.cli.collect import main

if __name__ == "__main__":
    main()
