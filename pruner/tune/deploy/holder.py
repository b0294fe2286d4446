"""A process that holds one network: its tasks are found there, and its library is built there.

Both need it imported and lowered, which takes seconds; here that is done once.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from pruner.processes import Worker
from pruner.tune.deploy import build
from pruner.tune.networks import extraction
from pruner.tune.tvm_import import load_tvm

_lowered: dict[Path, Any] = {}  # by the file of the network's request


def network_child() -> Worker:
    """The process; at once it imports what every network needs."""
    child = Worker(__name__, method="spawn")
    child.start()
    return child


def ready() -> None:
    """Import what every network needs."""
    load_tvm()
    importlib.import_module("torch")


def find_tasks(path: Path) -> None:
    """See :func:`pruner.tune.networks.extraction.write_tasks`."""
    _lowered[path.resolve()] = extraction.write_tasks(path)


def build_library(request: build.BuildRequest) -> build.Built:
    """See :func:`pruner.tune.deploy.build.build_library`."""
    return build.build_library(request, _lowered.get(Path(request.network).resolve()))
