"""Keep imported networks between commands.

An import takes much of the time of a first result. An entry is a folder with the files of an
import, named by a digest of all that decides its content: the network (of a file its bytes),
target, form, versions and the code of this project that imports. Networks of a user's factory have
no entries, since their code may change unnoticed; nor have ONNX files, whose weights may be in
other files.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from hashlib import file_digest, sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pruner import tune
from pruner.errors import DataError
from pruner.files import digest_of, read_json, write_atomic, write_json
from pruner.tune.networks.request import LOWERED, REQUEST, TASKS, WEIGHTS, NetworkRequest
from pruner.tune.networks.sizes import CATALOG

_ABOUT = "about.json"  # why the entry has not the requested layout, or null; sizes of the files
_FILES = (WEIGHTS, LOWERED, REQUEST, TASKS)
_MOST_BYTES = 2 << 30  # of all entries; the entries that were not used for longest go first
_ABANDONED_S = 86400.0  # age of a temporary folder that a killed command left
_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy", "torch", "torchvision", "onnx", "onnxscript")


class KeptImport:
    """The import of a request by an earlier command, below a folder.

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
            with tempfile.TemporaryDirectory(dir=entry.parent, prefix=".") as made:
                for name in _FILES:
                    shutil.copyfile(place / name, Path(made) / name)
                write_json(Path(made) / _ABOUT, {"reason": reason, "sizes": sizes})
                Path(made).rename(entry)
                Path(made).mkdir()  # which the context removes
            drop_oldest(entry.parent.iterdir(), _MOST_BYTES)

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
        about["versions"] = [sys.version, *map(_version, _PACKAGES)]
        about["code"] = digest_of(sorted(Path(tune.__path__[0]).rglob("*.py")))
        return self._folder / sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]


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
            drop = ages[entry] < time.time() - _ABANDONED_S
        else:
            size = sum(file.stat().st_size for file in entry.iterdir())
            drop = kept_bytes + size > most_bytes
            kept_bytes += 0 if drop else size
        if drop:
            shutil.rmtree(entry, ignore_errors=True)
