"""What a built network leaves in its run folder, and what goes when another takes its place."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pruner.files import check_links, held

DEPLOY_FILE, LIBRARY, LOADER, LOG = "deploy.json", "network.so", "run_network.py", "deploy.log"
WORK = "deploy"  # a folder: inputs, expected outputs, logs, a library that is not checked yet
TEMPORARY = "temporary"  # in it: what compilers leave when they are killed
KERNELS_FILE = "kernels_beside.json"  # of operators
BESIDE_FILE, REPORT = "beside.json", "report.html"  # what was found of the library


def forget(folder: Path) -> None:
    """Remove the library and what was found of it, that first."""
    for name in (DEPLOY_FILE, BESIDE_FILE, REPORT, LIBRARY):
        (folder / name).unlink(missing_ok=True)


@contextmanager
def deploying(folder: Path) -> Iterator[None]:
    """Take what is built of a run for this process; the run itself may still be tuning.

    Raises:
        PrunerError: another process builds it, or links lead out of the folder.
    """
    check_links(folder)
    (folder / WORK).mkdir(exist_ok=True)
    with held(folder / WORK):
        yield
