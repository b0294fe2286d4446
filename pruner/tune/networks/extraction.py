"""Extract a network's tasks in a worker, or take an earlier import."""

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from hashlib import file_digest, sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pruner import tune
from pruner.errors import DataError, PrunerError
from pruner.files import ABANDONED_S, as_written, digest_of, read_json, write_atomic, write_json
from pruner.processes import KILLED, MEMORY, TIMEOUT, JobFailed, Worker, ask, is_memory
from pruner.progress import Log, silent
from pruner.tune.networks.lowering import NetworkFormat
from pruner.tune.networks.network_tasks import NetworkTask, network_tasks
from pruner.tune.networks.request import (
    LOWERED,
    REQUEST,
    WEIGHTS,
    NetworkRequest,
    lowered_network,
    save_lowered,
)
from pruner.tune.networks.request import TASKS as TASKS
from pruner.tune.networks.sizes import CATALOG
from pruner.tune.networks.source import NetworkSource
from pruner.tune.tvm_import import load_tvm

LOG = "import.log"
_LIMIT_S = 3600.0  # of an import
_ABOUT = "about.json"  # why a kept import has not the requested layout, or null; sizes of the files
_FILES = (WEIGHTS, LOWERED, REQUEST, TASKS)
_MOST_BYTES = 2 << 30  # of all entries; the entries that were not used for longest go first
_DIGITS, _UNFINISHED = 32, ".import-"  # names of entries, and of folders that are being written
_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy", "torch", "torchvision", "onnx", "onnxscript")


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

    Raises `PrunerError`: the network cannot be imported, in one line.
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

    Returns why the requested layout could not be had; the request has the form that was used.
    Raises `PrunerError`: it cannot be imported, in one line.
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
    names = ("name", "key", "weight", "flops", "share", "shapes")
    save = load_tvm().tvm.ir.save_json
    rows = [
        {**{name: getattr(task, name) for name in names}, "module": save(task.module)}
        for task in tasks
    ]
    write_json(path, rows)


def read_tasks(path: Path) -> list[NetworkTask]:
    """Read the tasks of :func:`save_tasks`.

    Raises `DataError`: the file is damaged.
    """
    tvm = load_tvm().tvm
    with as_written(path):
        return [
            NetworkTask(**{**row, "module": tvm.ir.load_json(row["module"])})
            for row in read_json(path, list)
        ]


class KeptImport:
    """The import of a request by an earlier command, below a folder.

    An import takes much of the time of a first result. An entry is a folder with the files of an
    import, named by a digest of all that decides its content: the network (of a file its bytes),
    target, form, versions and the code of this project that imports. Networks of a user's factory
    have no entries, since their code may change unnoticed; nor have ONNX files, whose weights may
    be in other files.

    ``folder`` None: nothing is kept. Make it before the import: the content of the network's file
    at that time is its name.
    """

    def __init__(self, folder: Path | None, request: NetworkRequest) -> None:
        self._folder, self._request = folder, request
        self._entry = self._find()

    def restore(self, place: Path, *, keep: bool) -> tuple[bool, str | None]:
        """Write the files of the import into a run folder.

        ``keep``: the lowered network, too. Returns whether there was an import, and why it has not
        the requested layout. A damaged entry is removed.
        """
        entry = self._entry
        if entry is None or not entry.is_dir():
            return False, None
        try:
            about = read_json(entry / _ABOUT, dict)
            if about["sizes"] != _sizes(entry):
                raise ValueError("a file is not as it was written")
            form = NetworkRequest.read(entry / REQUEST).form
            for name in (WEIGHTS, LOWERED) if keep else ():
                # copied: the time of the file says that it is newer than the network's source
                shutil.copyfile(entry / name, place / name)
            replace(self._request, form=form).save(place / REQUEST)
            # the last file, and complete: a run with tasks is resumed without an import
            with write_atomic(place / TASKS) as partial:
                shutil.copyfile(entry / TASKS, partial)
        except (OSError, LookupError, ValueError, DataError):  # removed meanwhile, or damaged
            shutil.rmtree(entry, ignore_errors=True)
            return False, None
        with suppress(OSError):  # of another user, or removed meanwhile
            os.utime(entry)
        return True, about["reason"]

    def keep(self, place: Path, reason: str | None) -> None:
        """Store the import of a run folder, if complete and of unchanged sources."""
        entry = self._entry
        if entry is None or entry.is_dir() or self._find() != entry:
            return
        with suppress(OSError):  # a full disk must not end a command that has its result
            sizes = _sizes(place)
            if sum(sizes.values()) > _MOST_BYTES:
                return
            entry.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=entry.parent, prefix=_UNFINISHED) as made:
                for name in _FILES:
                    shutil.copyfile(place / name, Path(made) / name)
                write_json(Path(made) / _ABOUT, {"reason": reason, "sizes": sizes})
                Path(made).rename(entry)
                Path(made).mkdir()  # which the context removes
            # the user may keep other folders beside ours
            ours = [*entry.parent.glob("[0-9a-f]" * _DIGITS), *entry.parent.glob(f"{_UNFINISHED}*")]
            earlier = entry.parent.glob("." + 8 * "?")  # unfinished folders of earlier versions
            ours += [one for one in earlier if any((one / name).is_file() for name in _FILES)]
            drop_oldest(ours, _MOST_BYTES)

    def _find(self) -> Path | None:
        """Return the folder that has, or may get, the import."""
        source = self._request.source
        own = source.name in CATALOG if source.path is None else source.path.is_file()
        if self._folder is None or not own or source.is_onnx:
            return None
        about = asdict(self._request)
        if source.path is not None:
            try:
                with source.path.open("rb") as file:
                    about["source"]["name"] = file_digest(file, "sha256").hexdigest()
            except OSError:  # the import says why it cannot be read
                return None
        about |= software()
        return (
            self._folder / sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:_DIGITS]
        )


def software() -> dict[str, Any]:
    """Describe the versions and the code that import and build networks."""
    code = digest_of(sorted(Path(tune.__path__[0]).rglob("*.py")))
    return {"versions": [sys.version, *map(_version, _PACKAGES)], "code": code}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _sizes(folder: Path) -> dict[str, int]:
    return {name: (folder / name).stat().st_size for name in _FILES}


def drop_oldest(folders: Iterable[Path], most_bytes: int) -> None:
    """Remove the oldest folders of files beyond `most_bytes`, and old temporary folders."""
    ages = {one: one.stat().st_mtime for one in folders}
    kept_bytes = 0
    for entry in sorted(ages, key=lambda one: ages[one], reverse=True):
        if entry.name.startswith("."):  # another command may be writing it
            drop = ages[entry] < time.time() - ABANDONED_S
        else:
            size = sum(file.stat().st_size for file in entry.iterdir())
            drop = kept_bytes + size > most_bytes
            kept_bytes += 0 if drop else size
        if drop:
            shutil.rmtree(entry, ignore_errors=True)
