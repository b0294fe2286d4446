"""Write the features of record files as NumPy archives; see ``python featurize.py --help``."""

from pruner.cli.featurize import main

if __name__ == "__main__":
    main()
