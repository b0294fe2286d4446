"""Open the door: build the results book."""

from pruner.cli.report import main

if __name__ == "__main__":
    main()
