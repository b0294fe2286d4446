"""Compare adaptation methods on recorded pools; see ``python adapt.py --help``."""

from pruner.cli.adapt import main

if __name__ == "__main__":
    main()
