"""A process that holds one network: its tasks are found there, and its library is built there.

Both need it imported and lowered, which takes seconds; here that is done once. Run as
``python -m pruner.tune.deploy.holder`` by :func:`network_child`.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from pruner.processes import end_with_parent
from pruner.tune.child import Child, serve
from pruner.tune.deploy import build
from pruner.tune.networks import extraction
from pruner.tune.tvm_import import load_tvm


def network_child() -> Child:
    """The process; at once it imports what every network needs."""
    return Child(__spec__.name)


class Holder:
    """Jobs of the child, each for the file of a request; lowered networks are kept between them."""

    def __init__(self) -> None:
        self._lowered: dict[Path, Any] = {}  # by the file of the network's request

    def find_tasks(self, path: Path) -> None:
        """See :func:`pruner.tune.networks.extraction.write_tasks`."""
        self._lowered[path.resolve()] = extraction.write_tasks(path)

    def build_library(self, path: Path) -> None:
        """See :func:`pruner.tune.deploy.build.build_asked`."""
        network = json.loads(path.read_text(encoding="utf-8"))["network"]
        build.build_asked(path, self._lowered.get(Path(network).resolve()))


def _main() -> None:
    end_with_parent()  # which may be gone before all that is imported
    holder = Holder()
    load_tvm()
    importlib.import_module("torch")
    serve({extraction.JOB: holder.find_tasks, build.JOB: holder.build_library})


if __name__ == "__main__":
    _main()
