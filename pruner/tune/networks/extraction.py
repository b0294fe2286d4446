"""Extract a network's tasks in a worker process, with ``import.log``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pruner.errors import PrunerError
from pruner.files import as_written, read_json, write_json
from pruner.processes import KILLED, MEMORY, TIMEOUT, JobFailed, Worker, ask, is_memory
from pruner.progress import Log, silent
from pruner.tune.networks.kept_imports import KeptImport
from pruner.tune.networks.lowering import NetworkFormat
from pruner.tune.networks.network_tasks import NetworkTask, network_tasks
from pruner.tune.networks.request import REQUEST, NetworkRequest, lowered_network, save_lowered
from pruner.tune.networks.request import TASKS as TASKS
from pruner.tune.networks.source import NetworkSource
from pruner.tune.tvm_import import load_tvm

LOG = "import.log"
_LIMIT_S = 3600.0  # of an import


def extract_tasks(
    source: NetworkSource,
    target_json: str,
    folder: Path,
    form: NetworkFormat | None = None,
    *,
    keep: bool = False,
    worker: Worker | None = None,
    cache: Path | None = None,
    log: Log = silent,
) -> list[NetworkTask]:
    """Extract the tasks of a network, the largest share of arithmetic first.

    ``folder`` keeps the request, the tasks, and the log. ``keep``: the lowered network, too, for
    its library. ``worker``: a running worker with a job :func:`write_tasks`. ``cache``: a folder of
    earlier imports, which are used again. A network that cannot be lowered with variants, or with
    channels last, is lowered without; `log` gets a line, the request has the form that was used.

    Raises:
        PrunerError: the network cannot be imported, in one line.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = form or NetworkFormat()
    request = NetworkRequest(source=source.resolved, target=json.loads(target_json), form=wanted)
    kept = KeptImport(cache, request)
    known, reason = kept.restore(folder, keep=keep)
    if not known:
        reason, final = _imported(request, folder, keep, worker)
        if final:
            kept.keep(folder, reason)
    if reason is not None:
        asked = wanted if wanted.variants else wanted.layout
        taken = NetworkRequest.read(folder / REQUEST).form
        log(f"{source.label}: {asked} cannot be had, {taken} is taken ({reason})")
    return read_tasks(folder / TASKS)


def _imported(
    request: NetworkRequest, folder: Path, keep: bool, worker: Worker | None
) -> tuple[str | None, bool]:
    """Import a network in a worker.

    Returns the reason for another layout, and whether a later import would find the same one: not
    where the worker failed, perhaps for lack of memory.
    """
    # the worker reads it from the folder, and so does a later deployment
    request.save(folder / REQUEST)
    wanted = request.form
    arguments = (__name__, write_tasks.__name__, folder, keep)
    how: dict[str, Any] = {"log_file": folder / LOG, "timeout_s": _LIMIT_S, "worker": worker}
    try:
        found: str | None = ask(*arguments, **how)
    except JobFailed as failed:
        if not (failed.reply.crashed and (wanted.channels_last or wanted.variants)):
            raise _one_line(request, failed) from failed
        # a pass ended the process, which the worker itself could not survive
        replace(request, form=wanted.plain).save(folder / REQUEST)
        try:
            ask(*arguments, **how)
        except JobFailed as again:
            raise _one_line(replace(request, form=wanted.plain), again) from again
        return failed.reply.line, False
    return found, not is_memory(found or "")


def _one_line(request: NetworkRequest, failed: JobFailed) -> PrunerError:
    reply = failed.reply
    if reply.mistake is not None:
        return failed
    how = {
        KILLED: "was killed, as systems do where memory runs out; free memory, or take a smaller "
        "network",
        MEMORY: "ran out of memory; free memory, or take a smaller network",
        TIMEOUT: f"took more than {_LIMIT_S:g} s; loops over steps and layers are written out in "
        "it: take fewer",
    }.get(reply.error or "", "failed; leave parts of the network out until it succeeds")
    if request.form.variants:
        how += "; variants=false leaves the variants out"
    return PrunerError(f"network={request.source.name}: its import {how} ({failed})")


def write_tasks(folder: Path, keep: bool) -> str | None:
    """Import and lower a requested network, and write its tasks.

    ``keep``: write the lowered network, too.

    Returns:
        Why the requested layout could not be had; the request has the form that was used.

    Raises:
        PrunerError: it cannot be imported, in one line.
    """
    request = NetworkRequest.read(folder / REQUEST)
    lowered, form, reason = lowered_network(request)
    replace(request, form=form).save(folder / REQUEST)
    if keep:
        save_lowered(lowered, folder)
    save_tasks(network_tasks(lowered, request.tvm_target()), folder / TASKS)
    return reason


def save_tasks(tasks: Sequence[NetworkTask], path: Path) -> None:
    """Write tasks as JSON."""
    write_json(path, [_row(task) for task in tasks])


def read_tasks(path: Path) -> list[NetworkTask]:
    """Read the tasks of :func:`save_tasks`.

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
