"""Extract a network's tasks in a worker process, with ``import.log``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pruner.files import as_written, read_json, write_json
from pruner.processes import Worker, ask
from pruner.tune.networks.lowering import NetworkFormat
from pruner.tune.networks.network_tasks import NetworkTask, network_tasks
from pruner.tune.networks.request import REQUEST, NetworkRequest, lowered_network, save_lowered
from pruner.tune.networks.source import NetworkSource
from pruner.tune.tvm_import import load_tvm

TASKS, LOG = "tasks.json", "import.log"


def extract_tasks(
    source: NetworkSource,
    target_json: str,
    folder: Path,
    form: NetworkFormat | None = None,
    *,
    keep: bool = False,
    worker: Worker | None = None,
) -> list[NetworkTask]:
    """Extract the tasks of a network, the largest share of arithmetic first.

    ``folder`` keeps the request, the tasks, and the log. ``keep``: the lowered network, too, for
    its library. ``worker``: a running worker with a job :func:`write_tasks`.

    Raises:
        PrunerError: the network cannot be imported, in one line.
    """
    folder.mkdir(parents=True, exist_ok=True)
    request = NetworkRequest(
        source=source.resolved, target=json.loads(target_json), form=form or NetworkFormat()
    )
    # the worker reads it from the folder, and so does a later deployment
    request.save(folder / REQUEST)
    ask(__name__, write_tasks.__name__, folder, keep, log_file=folder / LOG, worker=worker)
    return read_tasks(folder / TASKS)


def write_tasks(folder: Path, keep: bool) -> None:
    """Import and lower a requested network, and write its tasks.

    ``keep``: write the lowered network, too.

    Raises:
        PrunerError: it cannot be imported, in one line.
    """
    request = NetworkRequest.read(folder / REQUEST)
    lowered = lowered_network(request)
    if keep:
        save_lowered(lowered, folder)
    tasks = network_tasks(lowered, request.tvm_target())
    write_json(folder / TASKS, [_row(task) for task in tasks])


def read_tasks(path: Path) -> list[NetworkTask]:
    """Read the tasks of :func:`write_tasks`.

    Raises:
        DataError: the file is damaged.
    """
    tvm = load_tvm().tvm
    with as_written(path):
        return [
            NetworkTask(**{**row, "module": tvm.ir.load_json(row["module"])})
            for row in read_json(path, list)
        ]


def _row(task: NetworkTask) -> dict[str, Any]:
    names = ("name", "key", "weight", "flops", "share", "shapes")
    module = load_tvm().tvm.ir.save_json(task.module)
    return {**{name: getattr(task, name) for name in names}, "module": module}
