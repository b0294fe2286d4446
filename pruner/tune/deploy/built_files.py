"""The files of a built network in its run folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pruner.files import check_links, held

DEPLOY_FILE, LIBRARY, LOADER, LOG = "deploy.json", "network.so", "run_network.py", "deploy.log"
WORK = "deploy"  # a folder: inputs, expected outputs, logs, a library that is not checked yet
BUILT_FILE = "built.json"  # in it: the build of the library, and a digest of its parts
TEMPORARY = "temporary"  # in it: files that killed compilers leave
KERNELS_FILE = "kernels_beside.json"  # of operators
COMPARISON_FILE, REPORT = "beside.json", "report.html"  # results of the library


def remove_built(folder: Path) -> None:
    """Remove the library's results, then the library."""
    for name in (DEPLOY_FILE, COMPARISON_FILE, REPORT, LIBRARY):
        (folder / name).unlink(missing_ok=True)


@contextmanager
def deploying(folder: Path) -> Iterator[None]:
    """Lock the deployment of a run, not its tuning; raise `PrunerError` where locked."""
    check_links(folder)
    (folder / WORK).mkdir(exist_ok=True)
    with held(folder / WORK):
        yield
