"""Tune programs on real hardware; see ``python tune.py --help``."""

from pruner.cli.tune import main

if __name__ == "__main__":
    main()
