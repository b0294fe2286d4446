"""Make libraries out of what was tuned; see ``python deploy.py --help``."""

from pruner.cli.shared.door import open_door

if __name__ == "__main__":
    open_door("deploy")
