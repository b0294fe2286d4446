"""Open the door: build the results book."""

from pruner.cli.shared.door import open_door

if __name__ == "__main__":
    open_door("report")
