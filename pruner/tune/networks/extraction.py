"""The tasks of a network, found in a child process.

Exporters and front ends print hundreds of warnings, hold the weights several times over and may
crash: that costs the child, whose output is kept as ``import.log``.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from pruner.files import as_written, read_json, write_json
from pruner.processes import Worker, ask
from pruner.tune.networks.lowering import NetworkForm
from pruner.tune.networks.request import REQUEST, NetworkRequest, lowered_network
from pruner.tune.networks.source import NetworkSource
from pruner.tune.networks.tasks import NetworkTask, network_tasks
from pruner.tune.tvm_import import load_tvm

TASKS, LOG = "tasks.json", "import.log"


def extract_tasks(
    source: NetworkSource,
    target_json: str,
    folder: Path,
    form: NetworkForm | None = None,
    child: Worker | None = None,
) -> list[NetworkTask]:
    """The tasks of a network on a target, the largest share of the arithmetic first.

    ``folder`` keeps what was asked for, the tasks, and the log of the child: its own, or one that
    runs already and has a job :func:`find_tasks`.

    Raises:
        PrunerError: the network cannot be imported, in one line.
    """
    folder.mkdir(parents=True, exist_ok=True)
    request = NetworkRequest(
        source=source.resolved, target=json.loads(target_json), form=form or NetworkForm()
    )
    request.save(folder / REQUEST)
    ask(__name__, find_tasks.__name__, folder / REQUEST, log=folder / LOG, worker=child)
    return read_tasks(folder / TASKS)


def read_tasks(path: Path) -> list[NetworkTask]:
    """The tasks that a child wrote. Raises `DataError` where the file is damaged."""
    tvm = load_tvm().tvm
    with as_written(path):
        return [
            NetworkTask(**{**row, "module": tvm.ir.load_json(row["module"])})
            for row in read_json(path, list)
        ]


def _row(task: NetworkTask) -> dict[str, Any]:
    names = ("name", "key", "weight", "flops", "share", "shapes")
    module = importlib.import_module("tvm").ir.save_json(task.module)
    return {**{name: getattr(task, name) for name in names}, "module": module}


def write_tasks(path: Path) -> Any:
    """In the child: the tasks of a request, written beside it; the lowered network.

    Raises:
        PrunerError: it cannot be imported, in one line.
    """
    request = NetworkRequest.read(path)
    lowered = lowered_network(request)
    tasks = network_tasks(lowered, request.tvm_target())
    write_json(path.parent / TASKS, [_row(task) for task in tasks])
    return lowered


def find_tasks(path: Path) -> None:
    """In the child: :func:`write_tasks`."""
    write_tasks(path)
