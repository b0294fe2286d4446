"""``python -m pruner.cli COMMAND ...`` is ``pruner COMMAND ...`` of this Python."""

from pruner.cli.shared.door import main

if __name__ == "__main__":
    main()
