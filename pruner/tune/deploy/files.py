"""What a built network leaves in its run folder, and what goes when another takes its place."""

from pathlib import Path

DEPLOY_FILE, LIBRARY, LOADER, LOG = "deploy.json", "network.so", "run_network.py", "deploy.log"
WORK = "deploy"  # a folder: inputs, expected outputs, logs, a library that is not checked yet
KERNELS_FILE = "kernels_beside.json"  # of operators
BESIDE_FILE, REPORT = "beside.json", "report.html"  # what was found of the library


def forget(folder: Path) -> None:
    """Remove the library and what was found of it, that first."""
    for name in (DEPLOY_FILE, BESIDE_FILE, REPORT, LIBRARY):
        (folder / name).unlink(missing_ok=True)
