"""Run ``pruner COMMAND ...`` as ``python -m pruner.cli COMMAND ...``."""

from pruner.cli.shared.door import main

if __name__ == "__main__":
    main()
