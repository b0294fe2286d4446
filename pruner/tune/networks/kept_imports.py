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
import tempfile
from contextlib import suppress
from dataclasses import asdict, replace
from hashlib import file_digest, sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pruner.tune.networks.request import LOWERED, REQUEST, TASKS, WEIGHTS, NetworkRequest
from pruner.tune.networks.sizes import CATALOG

_REASON = "reason.json"  # why the entry has not the requested layout, or null
_MOST_BYTES = 2 << 30  # of all entries; the entries that were not used for longest go first
_PACKAGES = ("apache-tvm", "torch", "torchvision", "onnx", "onnxscript")


class KeptImports:
    """Imports of earlier commands below a folder, None: nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def restore(
        self, request: NetworkRequest, place: Path, *, keep: bool
    ) -> tuple[bool, str | None]:
        """Write the files of an equal import into a run folder.

        ``keep``: the lowered network, too. Returns whether there was an import, and why it has not
        the requested layout.
        """
        entry = self._entry(request)
        if entry is None or not (entry / _REASON).is_file():
            return False, None
        try:
            reason = json.loads((entry / _REASON).read_text())
            form = NetworkRequest.read(entry / REQUEST).form
            for name in (TASKS, *([LOWERED, WEIGHTS] if keep else [])):
                # copied: the time of the file says that it is newer than the network's source
                shutil.copyfile(entry / name, place / name)
        except (OSError, ValueError):  # removed meanwhile, or damaged: imported again
            return False, None
        replace(request, form=form).save(place / REQUEST)
        os.utime(entry)
        return True, reason

    def keep(self, request: NetworkRequest, place: Path, reason: str | None) -> None:
        """Store the import of a run folder, if it is complete there."""
        entry = self._entry(request)
        if entry is None or entry.is_dir():
            return
        with suppress(OSError):  # a full disk must not end a command that has its result
            entry.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=entry.parent, prefix=".") as made:
                for name in (REQUEST, TASKS, LOWERED, WEIGHTS):
                    shutil.copyfile(place / name, Path(made) / name)
                (Path(made) / _REASON).write_text(json.dumps(reason))
                Path(made).rename(entry)
                Path(made).mkdir()  # which the context removes
            _drop_oldest(entry.parent)

    def _entry(self, request: NetworkRequest) -> Path | None:
        source = request.source
        own = source.name in CATALOG if source.path is None else source.path.is_file()
        if self._folder is None or not own or source.is_onnx:
            return None
        about = asdict(request)
        if source.path is not None:
            with source.path.open("rb") as file:
                about["source"]["name"] = file_digest(file, "sha256").hexdigest()
        about["versions"] = [_version(name) for name in _PACKAGES]
        about["code"] = _code_digest()
        return self._folder / sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _code_digest() -> str:
    digest, folder = sha256(), Path(__file__).parent
    for path in (folder.parent / "workloads.py", *sorted(folder.rglob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _drop_oldest(folder: Path) -> None:
    entries = [one for one in folder.iterdir() if one.name[0] != "."]
    total = 0
    for entry in sorted(entries, key=lambda one: one.stat().st_mtime, reverse=True):
        total += sum(file.stat().st_size for file in entry.iterdir())
        if total > _MOST_BYTES:
            shutil.rmtree(entry, ignore_errors=True)
